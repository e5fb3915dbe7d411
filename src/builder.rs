//! The options of an endpoint, and its opening: discovery, domain, endpoint.

use std::sync::Arc;
use std::time::Duration;

use ferrofabric_av::AvAttr;
use ferrofabric_contracts::config::Settings;
use ferrofabric_contracts::error::Result;
use ferrofabric_contracts::info::{EpAttr, EpType, Info, Progress, Threading};
use ferrofabric_runtime::discovery::getinfo;
use ferrofabric_runtime::fabric::{Domain, EndpointConfig, Provider};
use ferrofabric_runtime::owning::OwningEndpoint;
use ferrofabric_shm::ShmProvider;
use ferrofabric_verbs::VerbsProvider;

use crate::endpoint::RdmEndpoint;

/// The transports that reach peers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum PathChoice {
    /// Peers on this node over shared memory, others over verbs; shared memory alone where the
    /// machine has no device.
    #[default]
    Both,
    /// Peers on this node, over shared memory.
    Shm,
    /// All peers over verbs, those on this node too.
    Verbs,
}

/// The options of an [`RdmEndpoint`].
///
/// ```
/// use ferrofabric::info::Progress;
/// use ferrofabric::{PathChoice, RdmEndpoint};
///
/// let endpoint = RdmEndpoint::builder()
///     .path(PathChoice::Shm)
///     .progress(Progress::Auto)
///     .delivery_complete(true)
///     .open()?;
/// println!("peers insert {}", endpoint.address());
/// # Ok::<(), ferrofabric::Error>(())
/// ```
#[must_use]
pub struct RdmEndpointBuilder {
    hints: Info,
    settings: Option<Settings>,
    path: PathChoice,
    unknown_sources: bool,
    delivery_complete: bool,
    collectives: bool,
    send_timeout: Option<Duration>,
    av: AvAttr,
    configure: Option<Configure>,
}

/// A change of an endpoint's bindings.
type Configure = Box<dyn FnOnce(&mut EndpointConfig)>;

impl RdmEndpoint {
    /// Opens an endpoint on the best domain of this machine, with the options' defaults.
    ///
    /// # Errors
    ///
    /// As [`RdmEndpointBuilder::open`].
    pub fn open() -> Result<Self> {
        Self::builder().open()
    }

    /// The options of an endpoint.
    pub fn builder() -> RdmEndpointBuilder {
        RdmEndpointBuilder {
            hints: Info::default(),
            settings: None,
            path: PathChoice::default(),
            unknown_sources: true,
            delivery_complete: false,
            collectives: false,
            send_timeout: None,
            av: AvAttr::default(),
            configure: None,
        }
    }
}

impl RdmEndpointBuilder {
    /// The transports that reach peers; both by default.
    pub fn path(self, path: PathChoice) -> Self {
        Self { path, ..self }
    }

    /// The party that moves operations on. [`Progress::Auto`]: a thread of the domain.
    /// [`Progress::Manual`], the default: the calls of the application.
    pub fn progress(mut self, progress: Progress) -> Self {
        self.hints.domain.data_progress = progress;
        self
    }

    /// The threads that may use the endpoint; any thread by default. [`Threading::Domain`] saves a
    /// lock; the endpoint then belongs to the first thread that uses it, and other threads get
    /// `EBUSY`.
    pub fn threading(mut self, threading: Threading) -> Self {
        self.hints.domain.threading = threading;
        self
    }

    /// Whether messages of unknown sources carry the sender's address; they do by default. They are
    /// received in any case.
    pub fn unknown_sources(self, with_address: bool) -> Self {
        Self {
            unknown_sources: with_address,
            ..self
        }
    }

    /// Whether a send completes when the message is in its receive's buffer
    /// (`FI_DELIVERY_COMPLETE`), and fails if the peer goes before that. Otherwise it completes
    /// when its buffer is free.
    pub fn delivery_complete(self, complete: bool) -> Self {
        Self {
            delivery_complete: complete,
            ..self
        }
    }

    /// Whether the endpoint has [collective operations](RdmEndpoint#collective-operations). The
    /// highest bit of a tag is theirs then: a message with it is refused (`EINVAL`), and no receive
    /// ignores it. Counters count their messages, too.
    pub fn collectives(self, with_collectives: bool) -> Self {
        Self {
            collectives: with_collectives,
            ..self
        }
    }

    /// The longest time for which a call that posts an operation waits for capacity
    /// ([back-pressure](RdmEndpoint#back-pressure)): it is refused with `EAGAIN` then, and the
    /// error contains the buffer. Without this option it waits for as long as the peer lives.
    pub fn send_timeout(self, timeout: Duration) -> Self {
        Self {
            send_timeout: Some(timeout),
            ..self
        }
    }

    /// Further hints for discovery (fi_getinfo(3)): they replace the options for progress and
    /// threading that were set before.
    pub fn hints(self, hints: Info) -> Self {
        Self { hints, ..self }
    }

    /// Settings in place of those of the environment.
    pub fn settings(self, settings: Settings) -> Self {
        Self {
            settings: Some(settings),
            ..self
        }
    }

    /// The attributes of the address vector.
    pub fn address_vector(self, av: AvAttr) -> Self {
        Self { av, ..self }
    }

    /// Changes the bindings of the endpoint: counters of its domain, its source, its traffic class.
    /// The endpoint does not see completions in other queues than its own, and their buffers stay
    /// in use until it is dropped.
    pub fn configure(self, change: impl FnOnce(&mut EndpointConfig) + 'static) -> Self {
        Self {
            configure: Some(Box::new(change)),
            ..self
        }
    }

    /// Opens the endpoint on the best domain of this machine that the options allow.
    ///
    /// # Errors
    ///
    /// `ENODATA`: there is no such domain; the error gives the reason for each candidate. `EINVAL`:
    /// a setting of the environment has no such value. Any lack of a device or of the system.
    pub fn open(self) -> Result<RdmEndpoint> {
        let domain = self.open_domain()?;
        self.open_on(&domain)
    }

    /// Opens the endpoint on a domain that is open already, which several endpoints may share. The
    /// options of the domain are ignored.
    ///
    /// # Errors
    ///
    /// As [`Domain::open_endpoint`].
    pub fn open_on(self, domain: &Arc<dyn Domain>) -> Result<RdmEndpoint> {
        let (unknown_sources, configure) = (self.unknown_sources, self.configure);
        let (with_collectives, send_timeout) = (self.collectives, self.send_timeout);
        let mut inner = OwningEndpoint::open_with(&**domain, &self.av, |config| {
            config.source_err = unknown_sources;
            if let Some(change) = configure {
                change(config);
            }
        })?;
        inner.set_delivery_complete(self.delivery_complete);
        RdmEndpoint::over(domain.clone(), inner, with_collectives, send_timeout)
    }

    /// Opens the domain that [`open`](Self::open) takes, for endpoints that share it.
    ///
    /// # Errors
    ///
    /// As there.
    pub fn open_domain(&self) -> Result<Arc<dyn Domain>> {
        let mut settings = match &self.settings {
            Some(settings) => settings.clone(),
            None => Settings::from_env()?,
        };
        settings.verbs &= self.path != PathChoice::Shm;
        settings.shm &= self.path != PathChoice::Verbs;
        let hints = Info {
            ep: EpAttr {
                ep_type: EpType::Rdm,
                ..self.hints.ep.clone()
            },
            ..self.hints.clone()
        };
        let (verbs, shm) = (VerbsProvider::new(), ShmProvider::new());
        let providers: [&dyn Provider; 2] = [&verbs, &shm];
        let found = getinfo(&providers, Some(&hints), &settings)?;
        let best = &found.infos[0];
        match best.nic {
            Some(_) => verbs.open(best, &settings),
            None => shm.open(best, &settings),
        }
    }
}
