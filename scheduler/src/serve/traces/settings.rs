//! Where traces go: `--otlp-endpoint`, or the names of the OpenTelemetry specification in the environment.

use std::path::PathBuf;
use std::time::Duration;

use http::Uri;
use opentelemetry::KeyValue;
use opentelemetry_sdk::Resource;

/// The only protocol that is spoken.
const PROTOCOL: &str = "http/protobuf";
/// Spans that may wait, unless OTEL_BSP_MAX_QUEUE_SIZE says otherwise.
const QUEUE_MAX: usize = 2_048;
/// Spans of one request, unless OTEL_BSP_MAX_EXPORT_BATCH_SIZE says otherwise.
const BATCH_MAX: usize = 512;
/// Longest wait of a span for others, unless OTEL_BSP_SCHEDULE_DELAY says otherwise.
const DELAY: Duration = Duration::from_secs(5);
/// For one request with its repetitions, unless OTEL_EXPORTER_OTLP_TIMEOUT says otherwise.
const TIMEOUT: Duration = Duration::from_secs(10);

/// See the module. The exporter reads OTEL_EXPORTER_OTLP_HEADERS itself: they may hold a secret, and are nowhere else.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// The whole URL.
    pub endpoint: Uri,
    /// The authority that signed the receiver's certificate, PEM; the system's if none.
    pub authority: Option<PathBuf>,
    /// Spans that may wait.
    pub queue_max: usize,
    /// Spans of one request.
    pub batch_max: usize,
    /// How long a span waits for others.
    pub delay: Duration,
    /// For one request with its repetitions.
    pub timeout: Duration,
    name_is_set: bool,
}

impl Settings {
    /// What `flag` and the environment say; `None` if there are to be no traces. The flag wins.
    ///
    /// # Errors
    /// The variable that can't be used.
    pub fn read(flag: Option<&str>, env: impl Fn(&str) -> Option<String>) -> Result<Option<Self>, String> {
        let env = |name: &str| env(name).map(|text| text.trim().to_owned()).filter(|text| !text.is_empty());
        // The one of traces wins over the one of all signals.
        let either = |end: &str| {
            let names = [format!("OTEL_EXPORTER_OTLP_TRACES_{end}"), format!("OTEL_EXPORTER_OTLP_{end}")];
            names.into_iter().find_map(|name| Some((env(&name)?, name)))
        };
        let whole = |base: &str| format!("{}/v1/traces", base.trim_end_matches('/'));
        let (endpoint, named) = match (flag, env("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT"), env("OTEL_EXPORTER_OTLP_ENDPOINT")) {
            (Some(base), _, _) => (whole(base), "--otlp-endpoint"),
            _ if env("OTEL_SDK_DISABLED").is_some_and(|text| text.eq_ignore_ascii_case("true")) => return Ok(None),
            _ if env("OTEL_TRACES_EXPORTER").is_some_and(|text| text == "none") => return Ok(None),
            (None, Some(url), _) => (url, "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT"),
            (None, None, Some(base)) => (whole(&base), "OTEL_EXPORTER_OTLP_ENDPOINT"),
            (None, None, None) => return Ok(None),
        };
        let endpoint: Uri = endpoint.parse().map_err(|error| format!("{named} is no URL: {error}"))?;
        if !matches!(endpoint.scheme_str(), Some("http" | "https")) || endpoint.host().is_none_or(str::is_empty) {
            return Err(format!("{named} must be a URL as http://collector:4318"));
        }
        if let Some((protocol, name)) = either("PROTOCOL").filter(|(protocol, _)| protocol != PROTOCOL) {
            return Err(format!("{name} is {protocol:?}, but traces are sent as {PROTOCOL} only (to port 4318 as a rule)"));
        }
        if let Some(exporter) = env("OTEL_TRACES_EXPORTER").filter(|exporter| exporter != "otlp" && exporter != "none") {
            return Err(format!("OTEL_TRACES_EXPORTER is {exporter:?}, but there is no exporter other than otlp"));
        }
        let number = |name: &str, default: usize| match env(name) {
            None => Ok(default),
            Some(text) => {
                text.parse().ok().filter(|number| (1..=1_000_000).contains(number)).ok_or_else(|| format!("{name} is {text:?}, not a number from 1 to 1000000"))
            }
        };
        let millis = |name: &str, default: Duration| {
            let default = usize::try_from(default.as_millis()).unwrap_or(usize::MAX);
            number(name, default).map(|millis| Duration::from_millis(millis as u64))
        };
        let queue_max = number("OTEL_BSP_MAX_QUEUE_SIZE", QUEUE_MAX)?;
        Ok(Some(Self {
            endpoint,
            authority: either("CERTIFICATE").map(|(file, _)| PathBuf::from(file)),
            queue_max,
            batch_max: number("OTEL_BSP_MAX_EXPORT_BATCH_SIZE", BATCH_MAX)?.min(queue_max),
            delay: millis("OTEL_BSP_SCHEDULE_DELAY", DELAY)?,
            timeout: either("TIMEOUT").map_or(Ok(TIMEOUT), |(_, name)| millis(&name, TIMEOUT))?,
            name_is_set: env("OTEL_SERVICE_NAME").is_some() || env("OTEL_RESOURCE_ATTRIBUTES").is_some_and(|text| text.contains("service.name=")),
        }))
    }

    /// Host and port, for the log: the rest of a URL may hold a secret.
    pub fn receiver(&self) -> String {
        let port = self.endpoint.port_u16().map(|port| format!(":{port}")).unwrap_or_default();
        format!("{}{port}", self.endpoint.host().unwrap_or_default())
    }

    /// Who sends: OTEL_RESOURCE_ATTRIBUTES and OTEL_SERVICE_NAME are obeyed.
    pub fn resource(&self, instance: &str) -> Resource {
        let own = [KeyValue::new("service.version", env!("CARGO_PKG_VERSION")), KeyValue::new("service.instance.id", instance.to_owned())];
        let builder = Resource::builder().with_attributes(own);
        if self.name_is_set { builder.build() } else { builder.with_service_name("berth").build() }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::panic, reason = "a test may panic")]
mod tests {
    use super::*;

    fn read(flag: Option<&str>, env: &[(&str, &str)]) -> Result<Option<Settings>, String> {
        Settings::read(flag, |name| env.iter().find(|(known, _)| *known == name).map(|(_, value)| (*value).to_owned()))
    }

    #[test]
    fn the_endpoint_is_the_flags_then_that_of_traces_then_that_of_all() {
        const ALL: (&str, &str) = ("OTEL_EXPORTER_OTLP_ENDPOINT", "https://all:1/base/");
        const TRACES: (&str, &str) = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "http://traces:2/own/path");
        const OFF: (&str, &str) = ("OTEL_SDK_DISABLED", "True");
        type Row<'a> = (Option<&'a str>, &'a [(&'a str, &'a str)], Option<&'a str>);
        let rows: [Row<'_>; 9] = [
            (None, &[], None),
            (None, &[("OTEL_EXPORTER_OTLP_ENDPOINT", " ")], None),
            (None, &[ALL], Some("https://all:1/base/v1/traces")),
            (None, &[ALL, TRACES], Some("http://traces:2/own/path")),
            (Some("http://flag:4318"), &[ALL, TRACES], Some("http://flag:4318/v1/traces")),
            (Some("http://flag:4318/"), &[OFF], Some("http://flag:4318/v1/traces")),
            (None, &[ALL, OFF], None),
            (None, &[TRACES, ("OTEL_TRACES_EXPORTER", "none")], None),
            (None, &[ALL, ("OTEL_TRACES_EXPORTER", "otlp"), ("OTEL_EXPORTER_OTLP_PROTOCOL", "http/protobuf")], Some("https://all:1/base/v1/traces")),
        ];
        for (flag, env, wanted) in rows {
            let endpoint = read(flag, env).unwrap().map(|settings| settings.endpoint.to_string());
            assert_eq!(endpoint.as_deref(), wanted, "{flag:?} {env:?}");
        }
    }

    #[test]
    fn what_cannot_be_used_is_named() {
        const URL: (&str, &str) = ("OTEL_EXPORTER_OTLP_ENDPOINT", "http://a:4318");
        let rows: [(&[(&str, &str)], &str); 6] = [
            (&[("OTEL_EXPORTER_OTLP_ENDPOINT", "a:4318")], "OTEL_EXPORTER_OTLP_ENDPOINT "),
            (&[("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "ftp://a")], "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT must be a URL as http://collector:4318"),
            (&[URL, ("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc")], "OTEL_EXPORTER_OTLP_PROTOCOL is \"grpc\""),
            (&[URL, ("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "http/json")], "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL is \"http/json\""),
            (&[URL, ("OTEL_TRACES_EXPORTER", "console")], "OTEL_TRACES_EXPORTER is \"console\""),
            (&[URL, ("OTEL_BSP_MAX_QUEUE_SIZE", "0")], "OTEL_BSP_MAX_QUEUE_SIZE is \"0\", not a number from 1 to 1000000"),
        ];
        for (env, wanted) in rows {
            let told = read(None, env).unwrap_err();
            assert!(told.starts_with(wanted), "{told}");
        }
    }

    #[test]
    fn limits_are_the_specifications_unless_set_and_a_url_is_told_without_its_secrets() {
        let settings =
            read(Some("http://user:secret@host:9/?key=secret"), &[("OTEL_EXPORTER_OTLP_TRACES_TIMEOUT", "250"), ("OTEL_EXPORTER_OTLP_TIMEOUT", "9")]);
        let settings = settings.unwrap().unwrap();
        assert_eq!((settings.queue_max, settings.batch_max, settings.delay, settings.timeout), (2_048, 512, DELAY, Duration::from_millis(250)));
        assert_eq!(settings.receiver(), "host:9");
        let settings = read(Some("http://a"), &[("OTEL_BSP_MAX_QUEUE_SIZE", "7"), ("OTEL_BSP_SCHEDULE_DELAY", "50")]).unwrap().unwrap();
        assert_eq!((settings.queue_max, settings.batch_max, settings.delay), (7, 7, Duration::from_millis(50)));
    }
}
