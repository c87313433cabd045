//! What may be the name of an object or namespace: DNS-1123, as the API server checks it.

/// Longest DNS-1123 subdomain, bytes: the name of most objects.
pub const SUBDOMAIN_BYTES_MAX: usize = 253;
/// Longest DNS-1123 label, bytes: the name of a namespace. Also of the name of a label, and of its value.
pub const LABEL_BYTES_MAX: usize = 63;

/// Lower-case letters, digits and `-`, beginning and ending with one of the former, at most 63.
pub fn is_dns_label(text: &str) -> bool {
    text.len() <= LABEL_BYTES_MAX && is_label_of_any_length(text)
}

/// Such labels, of any length, joined by `.`; at most 253 bytes.
pub fn is_dns_subdomain(text: &str) -> bool {
    text.len() <= SUBDOMAIN_BYTES_MAX && text.split('.').all(is_label_of_any_length)
}

pub(crate) fn is_label_of_any_length(text: &str) -> bool {
    let plain = |byte: &u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
    let bytes = text.as_bytes();
    bytes.first().is_some_and(plain) && bytes.last().is_some_and(plain) && bytes.iter().all(|byte| plain(byte) || *byte == b'-')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_those_of_the_api_server() {
        for (text, label, subdomain) in [
            ("a", true, true),
            ("0", true, true),
            ("a-b", true, true),
            ("a.b", false, true),
            ("a--b.c0", false, true),
            ("", false, false),
            ("-a", false, false),
            ("a-", false, false),
            ("a..b", false, false),
            (".a", false, false),
            ("a.", false, false),
            ("a.-b", false, false),
            ("A", false, false),
            ("a_b", false, false),
            ("ä", false, false),
            ("../x", false, false),
        ] {
            assert_eq!((is_dns_label(text), is_dns_subdomain(text)), (label, subdomain), "{text:?}");
        }
        for (length, label, subdomain) in [(63, true, true), (64, false, true), (253, false, true), (254, false, false)] {
            let text = "a".repeat(length);
            assert_eq!((is_dns_label(&text), is_dns_subdomain(&text)), (label, subdomain), "{length}");
        }
    }
}
