//! One request of a reflector: a list, a watch, or a check whether the server still has the history.

use ferry_api::object::ObjectName;

use super::resource::Recency;

/// What to ask for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Step {
    /// everything, then what changes, in one stream of so many seconds
    StreamingList { recency: Recency, seconds: u64 },
    /// everything, in pages
    List(Recency),
    /// one object, as it is at this version or later, to see whether the server's history goes on; any object that a cluster
    /// has where none of the kind is known
    Check { name: Option<ObjectName>, version: Box<str> },
    /// what changes after a version, in a stream of so many seconds
    Watch { version: Box<str>, seconds: u64 },
}
