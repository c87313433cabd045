//! Texts of kubelets and registries on their way into a condition: short, the same while nothing changes, and without what may be a credential.

/// Longest text that is kept, in bytes.
const BYTES_MAX: usize = 400;

/// A text for a condition.
pub fn tidy(text: &str) -> String {
    let words: Vec<String> = text.split_whitespace().map(without_credentials).collect();
    let text = words.join(" ");
    match text.len() > BYTES_MAX {
        true => format!("{}…", &text[..text.floor_char_boundary(BYTES_MAX)]),
        false => text,
    }
}

/// The user and the query of a URL are taken away: both may hold a password or a token.
fn without_credentials(word: &str) -> String {
    let Some((scheme, rest)) = word.split_once("://") else { return word.to_owned() };
    let end = rest.find(['/', '?', '#', '"']).unwrap_or(rest.len());
    let (authority, path) = rest.split_at(end);
    let host = authority.rsplit_once('@').map_or(authority, |(_, host)| host);
    let path = match path.find(['?', '#']) {
        // What follows the query in the same word is punctuation around the URL.
        Some(at) => {
            let tail: String = path.chars().rev().take_while(|c| matches!(c, '"' | ':' | ',' | ';' | ')' | '.')).collect();
            format!("{}?…{}", &path[..at], tail.chars().rev().collect::<String>())
        }
        None => path.to_owned(),
    };
    format!("{scheme}://{host}{path}")
}

/// What a pull failed with: the same text whether the kubelet tries just now or waits for the next attempt.
pub fn pull_failure(image: &str, message: &str) -> String {
    let cause = match message.strip_prefix("Back-off pulling image") {
        // `Back-off pulling image "x": ErrImagePull: cause`, or without a cause.
        Some(rest) => rest.split_once("ErrImagePull: ").map_or("", |(_, cause)| cause),
        None => message,
    };
    if cause.trim().is_empty() { format!("the image {image} can't be pulled") } else { tidy(cause) }
}

/// Why a Pod was refused: without its name, which is another one each time.
pub fn refusal(message: &str) -> String {
    let cause = message.split_once(" is forbidden: ").map_or(message, |(_, cause)| cause);
    tidy(cause.strip_prefix("Error creating: ").unwrap_or(cause))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_credential_gets_through() {
        for (text, expected) in [
            ("plain words", "plain words"),
            ("GET https://user:canary@r.example/v2/?token=canary: 401", "GET https://r.example/v2/?…: 401"),
            ("\"https://canary@r.example\" failed", "\"https://r.example\" failed"),
            ("Head \"https://r.example/v2/a/manifests/1?sig=canary\": EOF", "Head \"https://r.example/v2/a/manifests/1?…\": EOF"),
            ("see https://r.example/#canary", "see https://r.example/?…"),
            ("several\n  lines\tand  spaces", "several lines and spaces"),
        ] {
            assert_eq!(tidy(text), expected);
        }
        assert!(tidy(&"é".repeat(500)).len() <= BYTES_MAX + '…'.len_utf8());
    }

    #[test]
    fn a_pull_that_fails_has_one_text() {
        let cause = "failed to resolve reference \"r/a:1\": not found";
        assert_eq!(pull_failure("r/a:1", cause), pull_failure("r/a:1", &format!("Back-off pulling image \"r/a:1\": ErrImagePull: {cause}")));
        assert_eq!(pull_failure("r/a:1", "Back-off pulling image \"r/a:1\""), "the image r/a:1 can't be pulled");
    }

    #[test]
    fn a_refusal_has_one_text_whatever_the_pod_is_called() {
        let of = |name: &str| refusal(&format!("Error creating: pods \"{name}\" is forbidden: exceeded quota: q, requested: pods=1"));
        assert_eq!(of("ayj-1-abcde"), "exceeded quota: q, requested: pods=1");
        assert_eq!(of("ayj-1-abcde"), of("ayj-1-fghij"));
        assert_eq!(refusal("Error creating: Internal error occurred: failed calling webhook"), "Internal error occurred: failed calling webhook");
    }
}
