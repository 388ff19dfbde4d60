//! How long things may take and how much may come, in one place, so that tests can shorten it.

use std::ops::Range;
use std::time::Duration;

/// The times and bounds of a source. [`Timing::default`] is what runs in production.
#[derive(Clone, Debug)]
pub struct Timing {
    /// A watch that brings no byte for so long is asked for anew. The server sends a bookmark about every minute.
    pub silence: Duration,
    /// Watches that were open for so long in all and brought no byte are doubted: the server may have gone back to an
    /// older state, and be waiting for the version that we are at.
    pub deaf: Duration,
    /// When everything is listed anew after the server was away and it isn't certain that its history goes on, in
    /// milliseconds; one of these by chance, since all nodes do so. Until then watches go on from what is known.
    pub verify_millis: Range<u64>,
    /// A server that is behind the known version for so long counts as restored from a backup, in milliseconds; one of these
    /// by chance.
    pub lag_millis: Range<u64>,
    /// Interval of the checks in that time, in milliseconds.
    pub lag_check_millis: Range<u64>,
    /// Delay of the other kinds after a connection ended, so that Services ask first: at least the longest first backoff.
    pub courtesy: Duration,
    /// A watch from a version that is too old ends at once: one that is silent for so long goes on.
    pub verdict: Duration,
    /// A list that brings no byte for so long has failed.
    pub list_silence: Duration,
    /// How long the body of a refusal is read.
    pub refusal: Duration,
    /// A watch that ends sooner and brought nothing new is no success.
    pub brief: Duration,
    /// The least time from a request that brought nothing new to the next one.
    pub floor: Duration,
    /// The first wait after a failure; each further one is twice as long, and up to twice that by chance.
    pub backoff: Duration,
    /// The first wait after 401, 403, 429 and 5xx.
    pub failing: Duration,
    /// The bound of the doubling when the server fails.
    pub backoff_limit: Duration,
    /// The same where a long wait would save the server nothing: credentials that can't be had, and streams that end well but
    /// at once. And for refusals, until they go on for a while.
    pub short_limit: Duration,
    /// The bound when the server goes on to refuse, and for lists that follow each other.
    pub refusal_limit: Duration,
    /// A server that has just started refuses what it will allow in a moment. For so long, refusals are asked again as
    /// soon as other failures, and don't mean that a kind is not offered.
    pub refusal_grace: Duration,
    /// The longest wait that a server can ask for: long enough for any that means it, and not for ever.
    pub retry_after_limit: Duration,
    /// Lists that expire within so long of each other are asked for with growing waits between them.
    pub relist_memory: Duration,
    /// How long streaming lists are not tried after the server refused one.
    pub streaming_retry: Duration,
    /// When kinds are asked for again that the cluster need not have.
    pub optional_retry: Duration,
    /// How many seconds the server is asked to keep a watch; one of these by chance.
    pub watch_seconds: Range<u64>,
    /// The most objects in one list.
    pub most_objects: usize,
}

impl Default for Timing {
    fn default() -> Self {
        Self {
            silence: Duration::from_secs(130),
            deaf: Duration::from_secs(10 * 60),
            verify_millis: 5_000..60_000,
            lag_millis: 20_000..40_000,
            lag_check_millis: 5_000..10_000,
            courtesy: Duration::from_millis(120),
            verdict: Duration::from_millis(150),
            list_silence: Duration::from_secs(60),
            refusal: Duration::from_secs(5),
            brief: Duration::from_secs(1),
            floor: Duration::from_millis(50),
            backoff: Duration::from_millis(100),
            failing: Duration::from_millis(500),
            backoff_limit: Duration::from_secs(15),
            short_limit: Duration::from_secs(1),
            refusal_limit: Duration::from_secs(8),
            refusal_grace: Duration::from_secs(30),
            retry_after_limit: Duration::from_secs(5 * 60),
            relist_memory: Duration::from_secs(60),
            streaming_retry: Duration::from_secs(60 * 60),
            optional_retry: Duration::from_secs(10 * 60),
            watch_seconds: 300..600,
            most_objects: 262_144,
        }
    }
}
