//! Times and bounds of a source, in one place, so that tests can shorten them.

use std::ops::Range;
use std::time::Duration;

/// Times and bounds of a source. [`SourceTiming::default`] is for production.
#[derive(Clone, Debug)]
pub struct SourceTiming {
    /// Silence after which a watch is restarted. The server sends a bookmark about every minute.
    pub silence: Duration,
    /// Total silence of open watches after which the version is doubted: the server may have been restored to an older state, and
    /// wait for the version that the watch begins with.
    pub deaf: Duration,
    /// Delay of the full list after an outage if it isn't certain that the server's history continues, in milliseconds; random
    /// within the range, since all nodes do so. Until then watches continue from the known version.
    pub verify_millis: Range<u64>,
    /// Lag behind the known version after which the server counts as restored from a backup, in milliseconds; random within the
    /// range.
    pub lag_millis: Range<u64>,
    /// Interval of the checks during a lag, in milliseconds.
    pub lag_check_millis: Range<u64>,
    /// Delay of the other kinds after a lost connection, so that Services come first: at least the longest first backoff.
    pub courtesy: Duration,
    /// Silence after which a watch counts as accepted: one from a version that is too old ends at once.
    pub verdict: Duration,
    /// Silence after which a list has failed.
    pub list_silence: Duration,
    /// Time limit of reading the body of an error.
    pub refusal: Duration,
    /// Shortest watch without news that counts as a success.
    pub brief: Duration,
    /// Least time from a request without news to the next one.
    pub floor: Duration,
    /// First backoff after a failure; it doubles, and jitter extends it up to twice.
    pub backoff: Duration,
    /// First backoff after 401, 403, 429 and 5xx.
    pub failing: Duration,
    /// Limit of the backoff when the server fails, before jitter.
    pub backoff_limit: Duration,
    /// The same if a long backoff would save the server nothing: missing credentials, and streams that end properly but at once.
    /// And for rejections, until they continue for [`Self::refusal_grace`].
    pub short_limit: Duration,
    /// The same for continued rejections, and for repeated full lists.
    pub refusal_limit: Duration,
    /// A server that has just started rejects requests that it will accept shortly. For so long, rejections are retried like
    /// other failures, and don't mean that a kind isn't served.
    pub refusal_grace: Duration,
    /// Longest Retry-After that is respected.
    pub retry_after_limit: Duration,
    /// Full lists after expired versions within this time of each other are requested with growing backoff.
    pub relist_memory: Duration,
    /// Streaming lists are requested; without, paged lists only.
    pub streaming_lists: bool,
    /// Time without streaming lists after the server rejected one.
    pub streaming_retry: Duration,
    /// Retry interval of optional kinds.
    pub optional_retry: Duration,
    /// Requested duration of a watch, in seconds; random within the range.
    pub watch_seconds: Range<u64>,
    /// Most objects of one list.
    pub most_objects: usize,
}

impl Default for SourceTiming {
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
            streaming_lists: true,
            streaming_retry: Duration::from_secs(60 * 60),
            optional_retry: Duration::from_secs(10 * 60),
            watch_seconds: 300..600,
            most_objects: 262_144,
        }
    }
}
