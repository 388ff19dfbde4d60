//! Chooses the form of `/statusz` and `/flagz` by the header Accept: text, or an object of an API version for programs.

/// The form of an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ResponseForm {
    /// for people
    Text,
    /// an object of this version of `config.k8s.io`, of this media type
    Object { media_type: &'static str, version: &'static str },
}

/// The API group of the objects.
pub(super) const GROUP: &str = "config.k8s.io";
/// The current version, and the deprecated one.
pub(super) const VERSIONS: [&str; 2] = ["v1beta1", "v1alpha1"];
/// Media types of objects. JSON is YAML, too.
const MEDIA_TYPES: [&str; 2] = ["application/json", "application/yaml"];

/// The first form among those with the highest weight; `None` if none is acceptable. A bare `application/json` isn't: the layout
/// of objects depends on the version, which the client has to name, with the object's kind.
pub(super) fn negotiate(accept: &str, kind: &str) -> Option<ResponseForm> {
    if accept.trim().is_empty() {
        return Some(ResponseForm::Text);
    }
    let mut ranges: Vec<(f32, Option<ResponseForm>)> = accept.split(',').map(|range| weighed(range, kind)).collect();
    ranges.sort_by(|(a, _), (b, _)| b.total_cmp(a));
    ranges.into_iter().filter(|(weight, _)| *weight > 0.0).find_map(|(_, form)| form)
}

fn weighed(range: &str, kind: &str) -> (f32, Option<ResponseForm>) {
    let mut parts = range.split(';').map(str::trim);
    let media_type = parts.next().unwrap_or_default().to_ascii_lowercase();
    let parameters: Vec<(&str, &str)> = parts.filter_map(|part| part.split_once('=')).collect();
    let parameter = |wanted: &str| parameters.iter().find(|(name, _)| *name == wanted).map(|(_, value)| *value);
    let weight = parameter("q").and_then(|weight| weight.parse().ok()).unwrap_or(1.0);
    if matches!(media_type.as_str(), "*/*" | "text/*" | "text/plain") {
        return (weight, Some(ResponseForm::Text));
    }
    let media_type = MEDIA_TYPES.into_iter().find(|known| *known == media_type);
    let is_kind = parameter("g") == Some(GROUP) && parameter("as") == Some(kind);
    let version = VERSIONS.into_iter().find(|known| is_kind && parameter("v") == Some(known));
    (weight, media_type.zip(version).map(|(media_type, version)| ResponseForm::Object { media_type, version }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn forms_are_negotiated() {
        let json = |version| Some(ResponseForm::Object { media_type: "application/json", version });
        for (accept, wanted) in [
            ("", Some(ResponseForm::Text)),
            ("*/*", Some(ResponseForm::Text)),
            ("text/*;q=0.1", Some(ResponseForm::Text)),
            ("application/xml, text/plain;q=0.5", Some(ResponseForm::Text)),
            ("application/json", None),
            ("text/html", None),
            ("text/plain;q=0", None),
            ("application/json;v=v1beta1;g=config.k8s.io;as=Statusz", json("v1beta1")),
            ("application/json; as=Statusz; g=config.k8s.io; v=v1alpha1", json("v1alpha1")),
            ("text/plain;q=0.5, application/json;v=v1beta1;g=config.k8s.io;as=Statusz", json("v1beta1")),
            ("application/json;v=v1beta1;g=config.k8s.io;as=Flagz", None),
            ("application/json;v=v2;g=config.k8s.io;as=Statusz", None),
            (
                "application/yaml;v=v1beta1;g=config.k8s.io;as=Statusz",
                Some(ResponseForm::Object { media_type: "application/yaml", version: "v1beta1" }),
            ),
        ] {
            assert_eq!(negotiate(accept, "Statusz"), wanted, "{accept}");
        }
    }
}
