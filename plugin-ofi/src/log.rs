//! Our crates' events in libfabric's log (fi_log, `FI_LOG_LEVEL`, `FI_LOG_SUBSYS`).

use std::fmt::{self, Write as _};
use std::sync::atomic::{AtomicU64, Ordering};

use tracing::field::{Field, Visit};
use tracing::level_filters::LevelFilter;
use tracing::span;
use tracing::subscriber::{Interest, Subscriber, set_global_default};
use tracing::{Event, Level, Metadata};

use crate::abi::{fi_log_level, fi_log_subsys};
use crate::host::Host;

/// The names of our crates begin with it, and so do the targets of their events.
const OURS: &str = "ferro";

const LEVELS: [fi_log_level; 3] = [
    fi_log_level::FI_LOG_WARN,
    fi_log_level::FI_LOG_INFO,
    fi_log_level::FI_LOG_DEBUG,
];

const SUBSYSTEMS: [fi_log_subsys; 10] = [
    fi_log_subsys::FI_LOG_CORE,
    fi_log_subsys::FI_LOG_FABRIC,
    fi_log_subsys::FI_LOG_DOMAIN,
    fi_log_subsys::FI_LOG_EP_CTRL,
    fi_log_subsys::FI_LOG_EP_DATA,
    fi_log_subsys::FI_LOG_AV,
    fi_log_subsys::FI_LOG_CQ,
    fi_log_subsys::FI_LOG_EQ,
    fi_log_subsys::FI_LOG_MR,
    fi_log_subsys::FI_LOG_CNTR,
];

/// The levels that libfabric showed at the last check: a [`bit`] for each level of each subsystem.
/// An event that is off costs the check that `tracing` makes itself, of a static.
static SHOWN: AtomicU64 = AtomicU64::new(0);

/// Sends events to the log of the libfabric that we serve. A subscriber that is installed already
/// stays, and gets them instead. (The plugin as libfabric loads it has a `tracing` of its own,
/// apart from that of a host program in Rust.)
pub fn install(host: &Host) {
    refresh(host);
    // An error says that there is one.
    let _ = set_global_default(ToLibfabric);
}

/// Reads again which messages libfabric shows: an application may have imported a log of its own
/// (fi_import_log) meanwhile. For calls that take their time anyway, such as `fi_getinfo`.
pub fn refresh(host: &Host) {
    let mut shown = 0;
    for level in LEVELS {
        for subsystem in SUBSYSTEMS {
            if host.log_enabled(level, subsystem) {
                shown |= bit(level, subsystem);
            }
        }
    }
    show(shown);
}

/// Says nothing more: libfabric is about to end.
pub fn stop() {
    show(0);
}

fn show(shown: u64) {
    if SHOWN.swap(shown, Ordering::Relaxed) != shown {
        tracing::callsite::rebuild_interest_cache();
    }
}

fn bit(level: fi_log_level, subsystem: fi_log_subsys) -> u64 {
    1 << (level.0 * 16 + subsystem.0)
}

struct ToLibfabric;

impl Subscriber for ToLibfabric {
    fn register_callsite(&self, metadata: &'static Metadata<'static>) -> Interest {
        if self.enabled(metadata) {
            Interest::always()
        } else {
            Interest::never()
        }
    }

    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        let wanted = bit(level(metadata.level()), subsystem(metadata.target()));
        metadata.is_event()
            && metadata.target().starts_with(OURS)
            && SHOWN.load(Ordering::Relaxed) & wanted != 0
    }

    fn max_level_hint(&self) -> Option<LevelFilter> {
        let shown = SHOWN.load(Ordering::Relaxed);
        let any = |level| SUBSYSTEMS.iter().any(|&s| shown & bit(level, s) != 0);
        Some(if any(fi_log_level::FI_LOG_DEBUG) {
            LevelFilter::TRACE
        } else if any(fi_log_level::FI_LOG_INFO) {
            LevelFilter::INFO
        } else if any(fi_log_level::FI_LOG_WARN) {
            LevelFilter::WARN
        } else {
            LevelFilter::OFF
        })
    }

    fn event(&self, event: &Event<'_>) {
        let metadata = event.metadata();
        let (level, subsystem) = (level(metadata.level()), subsystem(metadata.target()));
        // libfabric chooses the providers that may log after `fi_prov_ini`, hence the check here.
        let Some(host) = Host::get().filter(|host| host.log_enabled(level, subsystem)) else {
            return;
        };
        let mut text = Text::default();
        event.record(&mut text);
        let line = metadata.line().unwrap_or(0);
        host.log(level, subsystem, metadata.target(), line, &text.whole());
    }

    // Spans are never enabled.

    fn new_span(&self, _: &span::Attributes<'_>) -> span::Id {
        span::Id::from_u64(1)
    }

    fn record(&self, _: &span::Id, _: &span::Record<'_>) {}

    fn record_follows_from(&self, _: &span::Id, _: &span::Id) {}

    fn enter(&self, _: &span::Id) {}

    fn exit(&self, _: &span::Id) {}
}

/// libfabric has no level for errors: they are warnings there.
fn level(level: &Level) -> fi_log_level {
    match *level {
        Level::ERROR | Level::WARN => fi_log_level::FI_LOG_WARN,
        Level::INFO => fi_log_level::FI_LOG_INFO,
        Level::DEBUG | Level::TRACE => fi_log_level::FI_LOG_DEBUG,
    }
}

/// libfabric's subsystem for a module, by the innermost part of its path that says.
fn subsystem(target: &str) -> fi_log_subsys {
    target
        .rsplit("::")
        .find_map(|module| match module {
            "fabric" => Some(fi_log_subsys::FI_LOG_FABRIC),
            "domain" | "device" | "pd" => Some(fi_log_subsys::FI_LOG_DOMAIN),
            "connect" | "endpoint" | "lanes" | "qp" | "service" | "srq" => {
                Some(fi_log_subsys::FI_LOG_EP_CTRL)
            }
            "datagrams" | "receive" | "send" | "transport" => Some(fi_log_subsys::FI_LOG_EP_DATA),
            "ah" | "av" => Some(fi_log_subsys::FI_LOG_AV),
            "cq" => Some(fi_log_subsys::FI_LOG_CQ),
            "mr" => Some(fi_log_subsys::FI_LOG_MR),
            "cntr" => Some(fi_log_subsys::FI_LOG_CNTR),
            _ => None,
        })
        .unwrap_or(fi_log_subsys::FI_LOG_CORE)
}

/// An event's message, and its other fields as `name=value`.
#[derive(Default)]
struct Text {
    message: String,
    fields: String,
}

impl Text {
    fn whole(mut self) -> String {
        self.message.push_str(&self.fields);
        self.message
    }
}

impl Visit for Text {
    fn record_str(&mut self, field: &Field, value: &str) {
        self.record_debug(field, &format_args!("{value}"));
    }

    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        // A string takes everything.
        let _ = match field.name() {
            "message" => write!(self.message, "{value:?}"),
            name => write!(self.fields, " {name}={value:?}"),
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_two_levels_and_subsystems_share_a_bit() {
        let mut all = 0_u64;
        for level in LEVELS {
            for subsystem in SUBSYSTEMS {
                all |= bit(level, subsystem);
            }
        }
        assert_eq!(all.count_ones(), 30);
    }

    #[test]
    fn the_innermost_module_says_the_subsystem() {
        let of = |target| subsystem(target);
        assert_eq!(of("ferrofabric_verbs::cq"), fi_log_subsys::FI_LOG_CQ);
        assert_eq!(
            of("ferrofabric_verbs::endpoint::rdm::send"),
            fi_log_subsys::FI_LOG_EP_DATA
        );
        assert_eq!(
            of("ferrofabric_verbs::endpoint::rdm"),
            fi_log_subsys::FI_LOG_EP_CTRL
        );
        assert_eq!(of("ferro_fi::guard"), fi_log_subsys::FI_LOG_CORE);
    }
}
