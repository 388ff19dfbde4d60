//! One request of a reflector: a list, a watch, or a check whether the server still has the history.

use ferry_api::object::ObjectName;

use super::resource::Recency;

/// The next request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum NextRequest {
    /// all objects, then their changes, in one stream of this duration
    StreamingList { recency: Recency, seconds: u64 },
    /// all objects, in pages
    List(Recency),
    /// one object at this version or later, to check that the server's history continues; `None` if no object is known, for one
    /// that every cluster has
    Check { name: Option<ObjectName>, version: Box<str> },
    /// changes after a version, in a stream of this duration
    Watch { version: Box<str>, seconds: u64 },
}
