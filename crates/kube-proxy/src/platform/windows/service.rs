//! The program as a Windows service: with `--windows-service`, as upstream's, the service manager starts and stops it.

use std::convert::Infallible;
use std::ffi::OsString;
use std::io::{self, Write as _};
use std::process::ExitCode;
use std::sync::{Mutex, OnceLock, PoisonError};
use std::time::Duration;

use windows_service::define_windows_service;
use windows_service::service::{
    ServiceControl, ServiceControlAccept, ServiceExitCode, ServiceState, ServiceStatus, ServiceType,
};
use windows_service::service_control_handler::{self, ServiceControlHandlerResult, ServiceStatusHandle};
use windows_service::service_dispatcher;

use super::console::{self, ask_to_end, has_no_user};

/// The program: takes the command line, and returns the exit code.
type Program = fn(Vec<OsString>) -> ExitCode;

/// The flag, which upstream has on Windows alone.
const FLAG: &str = "--windows-service";
/// The service's name, which the manager ignores for a service with a process of its own.
const NAME: &str = "kube-proxy";
/// Time that the manager grants an end: that of the removal of service addresses and of connections that are given a chance to end.
const END: Duration = Duration::from_secs(60);
/// The exit code of the service after an error, for the manager's log and its recovery actions.
const FAILED: u32 = 1;

/// A request to end that has come.
#[derive(Clone, Copy, Debug)]
pub struct EndingSignal;

static SERVICE: OnceLock<(Program, Vec<OsString>)> = OnceLock::new();
static STATUS: Mutex<Option<ServiceStatusHandle>> = Mutex::new(None);

define_windows_service!(service_entry, service_main);

/// Runs the program with this process's command line, as a service if it has the flag.
pub fn run_program(program: Program) -> ExitCode {
    let (arguments, as_service) = without_flag(std::env::args_os());
    if !as_service {
        return program(arguments);
    }
    // Set once: here.
    let _ = SERVICE.set((program, arguments));
    match service_dispatcher::start(NAME, service_entry) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            let error = match error {
                windows_service::Error::Winapi(error) => error.to_string(),
                other => other.to_string(),
            };
            let text =
                format!("{FLAG}: the service manager has not started this program: {error}; omit it in a console\n");
            let _ = io::stderr().write_all(text.as_bytes());
            ExitCode::FAILURE
        }
    }
}

/// Waits for a request to end, within a runtime.
///
/// # Errors
/// If the console's can't be handled.
pub async fn asked_to_end(_ends_by_itself: bool) -> io::Result<EndingSignal> {
    console::asked_to_end().await?;
    Ok(EndingSignal)
}

/// Ends the process with this code; the service manager learns that it has ended in order.
fn exit(code: i32) -> ! {
    let failure = u32::try_from(code).unwrap_or(FAILED);
    report(
        ServiceState::Stopped,
        if failure == 0 { ServiceExitCode::NO_ERROR } else { ServiceExitCode::ServiceSpecific(failure) },
    );
    std::process::exit(code)
}

// === impl EndingSignal ===

impl EndingSignal {
    /// Ends the program, in order for the service manager.
    ///
    /// # Errors
    /// None.
    pub fn end(self) -> io::Result<Infallible> {
        exit(0)
    }
}

/// The arguments without the flag, and its value: the last one counts.
fn without_flag(arguments: impl IntoIterator<Item = OsString>) -> (Vec<OsString>, bool) {
    let mut as_service = false;
    let mut is_other = |argument: &OsString| {
        let value = match argument.to_str().and_then(|text| text.strip_prefix(FLAG)) {
            Some("" | "=true") => true,
            Some("=false") => false,
            _ => return true,
        };
        as_service = value;
        false
    };
    let rest = arguments.into_iter().filter(|argument| is_other(argument)).collect();
    (rest, as_service)
}

/// The main function of the service, on a thread of the manager's library.
fn service_main(_arguments: Vec<OsString>) {
    let Some((program, arguments)) = SERVICE.get() else { return };
    has_no_user();
    let handler = |control| match control {
        ServiceControl::Stop | ServiceControl::Shutdown | ServiceControl::Preshutdown => {
            report(ServiceState::StopPending, ServiceExitCode::NO_ERROR);
            ask_to_end();
            ServiceControlHandlerResult::NoError
        }
        ServiceControl::Interrogate => ServiceControlHandlerResult::NoError,
        _other => ServiceControlHandlerResult::NotImplemented,
    };
    match service_control_handler::register(NAME, handler) {
        Ok(handle) => *STATUS.lock().unwrap_or_else(PoisonError::into_inner) = Some(handle),
        // Without a handler the manager would wait for its start in vain, and report that.
        Err(_error) => return,
    }
    report(ServiceState::Running, ServiceExitCode::NO_ERROR);
    // Returns after an error, or what needs no proxy; the proxy itself ends by `exit`.
    let code = program(arguments.clone());
    let ended =
        if code == ExitCode::SUCCESS { ServiceExitCode::NO_ERROR } else { ServiceExitCode::ServiceSpecific(FAILED) };
    report(ServiceState::Stopped, ended);
}

/// Reports the state of the service, if the program is one.
fn report(state: ServiceState, exit_code: ServiceExitCode) {
    let status = STATUS.lock().unwrap_or_else(PoisonError::into_inner);
    let Some(handle) = &*status else { return };
    let accepted = if state == ServiceState::Running {
        ServiceControlAccept::STOP | ServiceControlAccept::SHUTDOWN
    } else {
        ServiceControlAccept::empty()
    };
    let reported = handle.set_service_status(ServiceStatus {
        service_type: ServiceType::OWN_PROCESS,
        current_state: state,
        controls_accepted: accepted,
        exit_code,
        checkpoint: 0,
        wait_hint: if state == ServiceState::StopPending { END } else { Duration::ZERO },
        process_id: None,
    });
    if let Err(error) = reported {
        tracing::warn!(err = %error, ?state, "Reporting the state to the service manager failed");
    }
}
