//! Who asks: from socket addresses to the native addresses of who listens there, many side by side.
//!
//! The connection manager looks for the way (address, then route), then sends the request. It would wait four seconds before it
//! sends it again, so a request that is not answered soon is begun anew. So is one whose way is not found soon: what the kernel
//! learns of a neighbour between its question and its waiting for the answer, it only notices when that wait is over.

use std::collections::{HashMap, VecDeque};
use std::net::SocketAddr;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use ferrofabric_core::addr::NativeAddr;
use ferrofabric_core::av::{Resolve, cancelled};
use ferrofabric_core::error::{Errno, Error, Result};
use ferrofabric_core::protocol::wire::sidr::Service;
use ferrofabric_core::wait::WaitSet;
use ferrofabric_verbs_sys::rdma_cm_event_type as Kind;

use super::Host;
use super::channel::{Event, EventChannel, Id, IdKey};

/// Requests of one call that are under way at a time.
const SIDE_BY_SIDE: usize = 64;

/// How long the first request waits; each further one waits twice as long as the one before.
const FIRST_WAIT: Duration = Duration::from_millis(300);

/// What finds the endpoints of one kind by socket address, from one port.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Resolver {
    pub(crate) host: Host,
    pub(crate) service: Service,
    /// How long to look for one.
    pub(crate) patience: Duration,
}

impl Resolve for Resolver {
    fn resolve(&self, at: SocketAddr) -> Result<NativeAddr> {
        let mut all = self.resolve_all(&[at], &|| false);
        all.pop().unwrap_or_else(|| Err(cancelled(&at)))
    }

    fn resolve_all(
        &self,
        all: &[SocketAddr],
        stopped: &dyn Fn() -> bool,
    ) -> Vec<Result<NativeAddr>> {
        let search = match Search::begin(self, all) {
            Ok(search) => search,
            Err(error) => return all.iter().map(|_| Err(error.clone())).collect(),
        };
        search.run(stopped)
    }
}

/// A call under way.
struct Search<'a> {
    resolver: &'a Resolver,
    all: &'a [SocketAddr],
    found: Vec<Option<Result<NativeAddr>>>,
    /// Those that have not begun.
    waiting: VecDeque<usize>,
    asking: HashMap<IdKey, Request>,
    channel: Arc<EventChannel>,
    wait: WaitSet,
}

/// One endpoint that is looked for.
struct Request {
    /// Which of the call's.
    number: usize,
    id: Id,
    /// The way is known: if nothing comes, it is for want of an answer.
    reached: bool,
    /// When it is begun anew, or given up.
    until: Instant,
    deadline: Instant,
    /// How long it waits for the way, and again for the answer.
    wait: Duration,
}

impl<'a> Search<'a> {
    fn begin(resolver: &'a Resolver, all: &'a [SocketAddr]) -> Result<Self> {
        let channel = EventChannel::open()?;
        let wait = WaitSet::new()?;
        wait.add(channel.as_fd())?;
        Ok(Self {
            resolver,
            all,
            found: vec![None; all.len()],
            waiting: (0..all.len()).collect(),
            asking: HashMap::new(),
            channel,
            wait,
        })
    }

    fn run(mut self, stopped: &dyn Fn() -> bool) -> Vec<Result<NativeAddr>> {
        while !self.waiting.is_empty() || !self.asking.is_empty() {
            if stopped() {
                self.waiting.clear();
            }
            self.fill();
            if let Err(error) = self.step() {
                self.waiting.clear();
                for (_, request) in self.asking.drain() {
                    self.found[request.number] = Some(Err(error.clone()));
                }
            }
        }
        let outcome =
            |(found, at): (Option<_>, &SocketAddr)| found.unwrap_or_else(|| Err(cancelled(at)));
        self.found.into_iter().zip(self.all).map(outcome).collect()
    }

    /// Begins as many as may be under way.
    fn fill(&mut self) {
        while self.asking.len() < SIDE_BY_SIDE {
            let Some(number) = self.waiting.pop_front() else {
                return;
            };
            let deadline = Instant::now() + self.resolver.patience;
            self.start(number, deadline, FIRST_WAIT, false);
        }
    }

    fn start(&mut self, number: usize, deadline: Instant, wait: Duration, reached: bool) {
        let left = deadline.saturating_duration_since(Instant::now());
        let (from, to) = (
            self.resolver.host.socket(0),
            self.resolver.host.reach(self.all[number]),
        );
        if from.is_ipv4() != to.is_ipv4() {
            let why = format!("this domain speaks from {}", from.ip());
            return self.end(number, Err(self.error(number, Errno::EHOSTUNREACH, &why)));
        }
        let begun = Id::create(&self.channel).and_then(|id| {
            id.resolve_addr(from, to, wait.min(left))?;
            Ok(id)
        });
        match begun {
            Err(error) => self.end(number, Err(self.unreachable(number, error.errno()))),
            Ok(id) => {
                let request = Request {
                    number,
                    reached,
                    until: deadline,
                    deadline,
                    wait,
                    id,
                };
                self.asking.insert(request.id.key(), request);
            }
        }
    }

    fn end(&mut self, number: usize, outcome: Result<NativeAddr>) {
        self.found[number] = Some(outcome);
    }

    /// Waits for what comes next, and deals with it.
    fn step(&mut self) -> Result<()> {
        let Some(until) = self.asking.values().map(|request| request.until).min() else {
            return Ok(());
        };
        self.wait.sleep(Some(until))?;
        while let Some(event) = self.channel.event()? {
            self.happened(event);
        }
        let now = Instant::now();
        let late = |(key, request): (&IdKey, &Request)| (request.until <= now).then_some(*key);
        let late: Vec<_> = self.asking.iter().filter_map(late).collect();
        for key in late {
            if let Some(request) = self.asking.remove(&key) {
                self.silent(request);
            }
        }
        Ok(())
    }

    fn happened(&mut self, event: Event) {
        let Some(request) = self.asking.get_mut(&event.id) else {
            return;
        };
        let number = request.number;
        let left = request.deadline.saturating_duration_since(Instant::now());
        let outcome = match event.kind {
            Kind::RDMA_CM_EVENT_ADDR_RESOLVED => match request.id.resolve_route(left) {
                Ok(()) => return,
                Err(error) => Err(self.unreachable(number, error.errno())),
            },
            Kind::RDMA_CM_EVENT_ROUTE_RESOLVED => {
                request.reached = true;
                request.until = (Instant::now() + request.wait).min(request.deadline);
                match request.id.ask(&self.resolver.service.question()) {
                    Ok(()) => return,
                    Err(error) => Err(self.unreachable(number, error.errno())),
                }
            }
            Kind::RDMA_CM_EVENT_ESTABLISHED => {
                let answer = self.resolver.service.answered(&event.private_data);
                answer.map_err(|why| {
                    let why = format!("who listens there is no endpoint of this kind: {why}");
                    self.error(number, Errno::ECONNREFUSED, &why)
                })
            }
            // Above 0 it is the other side's word (IBTA 1.5 §12.11.2).
            Kind::RDMA_CM_EVENT_UNREACHABLE if event.status > 0 => {
                let why = "no endpoint of this kind listens there";
                Err(self.error(number, Errno::ECONNREFUSED, why))
            }
            _ if event.status == -Errno::ETIMEDOUT.0 => {
                if let Some(request) = self.asking.remove(&event.id) {
                    self.silent(request);
                }
                return;
            }
            _ if request.reached => Err(self.unanswered(number)),
            _ => Err(self.unreachable(number, Errno(event.status.abs()))),
        };
        self.asking.remove(&event.id);
        self.end(number, outcome);
    }

    /// Nothing came of a request in time.
    fn silent(&mut self, request: Request) {
        let Request {
            number,
            reached,
            deadline,
            wait,
            ..
        } = request;
        // Its identifier goes first: what still comes is not for the next.
        drop(request.id);
        if Instant::now() < deadline {
            return self.start(number, deadline, 2 * wait, reached);
        }
        let error = match reached {
            true => self.unanswered(number),
            false => self.unreachable(number, Errno::EHOSTUNREACH),
        };
        self.end(number, Err(error));
    }

    fn unanswered(&self, number: usize) -> Error {
        let why = "its host is there, and does not answer (setting resolve_timeout)";
        self.error(number, Errno::ETIMEDOUT, why)
    }

    fn unreachable(&self, number: usize, errno: Errno) -> Error {
        let (errno, why) = match errno {
            Errno::ENETUNREACH
            | Errno::EHOSTUNREACH
            | Errno::EHOSTDOWN
            | Errno::ETIMEDOUT
            | Errno::ENODEV
            | Errno::EADDRNOTAVAIL => (
                Errno::EHOSTUNREACH,
                format!(
                    "no host answers there on the network of {} (ip neigh, ip route)",
                    self.resolver.host.ip
                ),
            ),
            other => (other, "the connection manager refuses".to_owned()),
        };
        self.error(number, errno, &why)
    }

    fn error(&self, number: usize, errno: Errno, why: &str) -> Error {
        let at = self.all[number];
        Error::new(errno, "resolve", format!("socket address {at}")).mend(why)
    }
}
