//! The CPU profile: samples the process for as long as the request asks, and encodes what was found.

use std::io;
use std::num::NonZeroU32;
use std::time::{Duration, Instant, SystemTime};

use hyper::StatusCode;

use super::pprof::{self, Taken};
use crate::platform::Recording;
use crate::serve::http::{Deferred, DeferredAnswer, File, HttpRequest, HttpResponse, LIFETIME};

/// Samples per second of processor time, as in Go.
const FREQUENCY: NonZeroU32 = NonZeroU32::new(100).unwrap();
/// Go's default.
const SECONDS: u64 = 30;

/// Takes a profile for the number of seconds in the request. It ends early, unused, when the client goes away.
pub(super) fn of_processor(received: &HttpRequest) -> Deferred {
    let seconds =
        received.parameters("seconds").next().and_then(|text| text.parse().ok()).filter(|seconds| *seconds > 0);
    let length = Duration::from_secs(seconds.unwrap_or(SECONDS));
    Box::pin(async move { DeferredAnswer::from(profile(length).await) })
}

async fn profile(length: Duration) -> Result<File, HttpResponse> {
    if length >= LIFETIME {
        return Err(refusal(StatusCode::BAD_REQUEST, "profile duration exceeds the longest life of a connection"));
    }
    let (begun, time) = (Instant::now(), SystemTime::now());
    let recording = Recording::start(FREQUENCY).map_err(|error| not_started(&error))?;
    tokio::time::sleep(length).await;
    let samples = recording.finish();
    let taken = Taken { samples, time, length: begun.elapsed() };
    match pprof::encode(&taken) {
        Ok(content) => Ok(File { name: "profile", content }),
        Err(error) => {
            Err(refusal(StatusCode::INTERNAL_SERVER_ERROR, &format!("Could not encode the profile: {error}")))
        }
    }
}

fn not_started(error: &io::Error) -> HttpResponse {
    let why = match error.kind() {
        io::ErrorKind::ResourceBusy => "cpu profiling already in use".to_owned(),
        _ => error.to_string(),
    };
    refusal(StatusCode::INTERNAL_SERVER_ERROR, &format!("Could not enable CPU profiling: {why}"))
}

/// With the header by which `go tool pprof` tells such a text from a profile.
fn refusal(status: StatusCode, text: &str) -> HttpResponse {
    let mut answer = HttpResponse::text(format!("{text}\n")).with_status(status);
    answer.headers.push(("x-go-pprof", "1".to_owned()));
    answer
}

#[cfg(test)]
mod tests {
    use super::*;

    fn asked(uri: &str) -> Result<File, HttpResponse> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build().unwrap();
        match runtime.block_on(of_processor(&HttpRequest::get(uri))) {
            DeferredAnswer::File(file) => Ok(file),
            DeferredAnswer::Answer(answer) => Err(answer),
        }
    }

    #[test]
    fn a_profile_is_taken_unless_it_would_outlast_its_connection() {
        let refused = asked("/debug/pprof/profile?seconds=300").unwrap_err();
        assert_eq!(refused.status, StatusCode::BAD_REQUEST);
        for query in ["?seconds=1", "?seconds=-3", "?seconds=x", ""] {
            let file = asked(&format!("/debug/pprof/profile{query}")).unwrap();
            assert!(file.content.starts_with(&[0x1f, 0x8b]), "{query}");
        }
        let other = Recording::start(FREQUENCY).unwrap();
        let refused = asked("/debug/pprof/profile").unwrap_err();
        assert_eq!(refused.status, StatusCode::INTERNAL_SERVER_ERROR);
        assert_eq!(refused.body, "Could not enable CPU profiling: cpu profiling already in use\n");
        drop(other);
    }
}
