//! Resolution: from socket addresses to the native addresses of the endpoints that listen there,
//! many requests at a time. One call is one attempt; the address vector makes more attempts until
//! its time is over.
//!
//! The connection manager looks for the path (address, then route), then sends the request. It
//! would repeat the request only after four seconds, so this module starts a request anew if no
//! answer comes soon. It also does so if no route is found soon: if the kernel resolves a neighbour
//! between its first query and its wait for the reply, it notices that only at the end of the wait.

use std::collections::{HashMap, VecDeque};
use std::io::ErrorKind;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use ferrofabric_av::{Closing, Resolve, ResolveRequest, cancelled};
use ferrofabric_contracts::addr::NativeAddr;
use ferrofabric_contracts::error::{Errno, Error, Result};
use ferrofabric_protocol::wire::sidr::ServiceKind;
use ferrofabric_system::wait::WaitSet;
use ferrofabric_verbs_sys::rdma_cm_event_type as Kind;

use super::PortHost;
use super::channel::{CmAddr, CmEvent, CmId, EventChannel, IdKey};

/// Requests of one call that are under way at a time.
const SIDE_BY_SIDE: usize = 64;

/// How long the first request waits; each further one waits twice as long as the one before.
const FIRST_WAIT: Duration = Duration::from_millis(300);

/// Finds the endpoints of one kind by socket address, from one port.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SidrResolver {
    pub(crate) host: PortHost,
    pub(crate) service: ServiceKind,
    /// How long a resolution may last.
    pub(crate) timeout: Duration,
}

impl Resolve for SidrResolver {
    fn resolve(&self, at: SocketAddr) -> Result<NativeAddr> {
        let until = Instant::now() + self.timeout;
        let mut outcome = Err(cancelled(&at));
        let mut report = |_, found| outcome = found;
        self.resolve_all(
            &[ResolveRequest { at, until }],
            &Closing::new()?,
            &mut report,
        );
        outcome
    }

    fn resolve_all(
        &self,
        all: &[ResolveRequest],
        closing: &Closing,
        report: &mut dyn FnMut(usize, Result<NativeAddr>),
    ) {
        match SidrSearch::begin(self, all, closing, report) {
            Ok(search) => search.run(),
            Err(error) => (0..all.len()).for_each(|number| report(number, Err(error.clone()))),
        }
    }

    fn route(&self, at: SocketAddr) -> Result<()> {
        let unreachable = |why: &str| {
            Err(Error::new(
                Errno::EHOSTUNREACH,
                "resolve",
                format!("socket address {at}"),
            )
            .mend(why))
        };
        let to = self.host.reach(at);
        if to.is_ipv4() != self.host.ip.is_ipv4() {
            return unreachable(&format!("this domain sends from {}", self.host.ip));
        }
        let any: SocketAddr = match to {
            SocketAddr::V4(_) => (Ipv4Addr::UNSPECIFIED, 0).into(),
            SocketAddr::V6(_) => (Ipv6Addr::UNSPECIFIED, 0).into(),
        };
        let socket = UdpSocket::bind(any)
            .map_err(|error| Error::from_io(&error, "open", "socket to look for routes"))?;
        // This sends nothing: the kernel looks into its routing table.
        match socket.connect(to) {
            Ok(()) => Ok(()),
            Err(error) => match error.kind() {
                ErrorKind::NetworkUnreachable
                | ErrorKind::HostUnreachable
                | ErrorKind::InvalidInput
                | ErrorKind::AddrNotAvailable => {
                    unreachable(&format!("there is no route (ip route get): {error}"))
                }
                _ => Err(Error::from_io(&error, "find a route to", to.to_string())),
            },
        }
    }

    fn patience(&self) -> Duration {
        self.timeout
    }
}

/// A call under way.
struct SidrSearch<'a> {
    resolver: &'a SidrResolver,
    all: &'a [ResolveRequest],
    report: &'a mut dyn FnMut(usize, Result<NativeAddr>),
    closing: &'a Closing,
    /// Requests that have not started.
    waiting: VecDeque<usize>,
    asking: HashMap<IdKey, SidrRequest>,
    channel: Arc<EventChannel>,
    wait: WaitSet,
}

/// The request for one endpoint.
struct SidrRequest {
    /// The index of the address in the arguments of the call.
    number: usize,
    id: CmId,
    /// The route is found: a timeout means that the peer does not answer.
    reached: bool,
    /// The time at which the request starts anew, or fails.
    until: Instant,
    deadline: Instant,
    /// How long the request waits for the route, and again for the answer.
    wait: Duration,
}

impl<'a> SidrSearch<'a> {
    fn begin(
        resolver: &'a SidrResolver,
        all: &'a [ResolveRequest],
        closing: &'a Closing,
        report: &'a mut dyn FnMut(usize, Result<NativeAddr>),
    ) -> Result<Self> {
        let channel = EventChannel::open()?;
        let wait = WaitSet::new()?;
        wait.add(channel.as_fd())?;
        wait.add(closing.as_fd())?;
        Ok(Self {
            resolver,
            all,
            report,
            closing,
            waiting: (0..all.len()).collect(),
            asking: HashMap::new(),
            channel,
            wait,
        })
    }

    fn run(mut self) {
        while !self.waiting.is_empty() || !self.asking.is_empty() {
            if self.closing.is_closing() {
                return self.give_up(|search, number| cancelled(&search.all[number].at));
            }
            self.fill();
            if let Err(error) = self.step() {
                return self.give_up(|_, _| error.clone());
            }
        }
    }

    /// Fails all requests that are left.
    fn give_up(&mut self, why: impl Fn(&Self, usize) -> Error) {
        let asking = std::mem::take(&mut self.asking);
        let numbers = asking.values().map(|request| request.number);
        for number in numbers.chain(std::mem::take(&mut self.waiting)) {
            let error = why(self, number);
            self.end(number, Err(error));
        }
    }

    /// Starts as many requests as may be under way.
    fn fill(&mut self) {
        while self.asking.len() < SIDE_BY_SIDE {
            let Some(number) = self.waiting.pop_front() else {
                return;
            };
            // A request that had to wait for its turn has some time in any case.
            let deadline = self.all[number].until.max(Instant::now() + FIRST_WAIT);
            self.start(number, deadline, FIRST_WAIT, false);
        }
    }

    fn start(&mut self, number: usize, deadline: Instant, wait: Duration, reached: bool) {
        let left = deadline.saturating_duration_since(Instant::now());
        let (from, to) = (
            self.resolver.host.socket(0),
            self.resolver.host.reach(self.all[number].at),
        );
        if from.is_ipv4() != to.is_ipv4() {
            let why = format!("this domain sends from {}", from.ip());
            return self.end(number, Err(self.error(number, Errno::EHOSTUNREACH, &why)));
        }
        let begun = CmId::create(&self.channel).and_then(|id| {
            id.resolve_addr(CmAddr::Socket(from), CmAddr::Socket(to), wait.min(left))?;
            Ok(id)
        });
        match begun {
            Err(error) => self.end(number, Err(self.unreachable(number, error.errno()))),
            Ok(id) => {
                let request = SidrRequest {
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
        (self.report)(number, outcome);
    }

    /// Waits for the next event or deadline, and acts on it.
    fn step(&mut self) -> Result<()> {
        let Some(until) = self.asking.values().map(|request| request.until).min() else {
            return Ok(());
        };
        self.wait.sleep(Some(until))?;
        while let Some(event) = self.channel.event()? {
            self.happened(event);
        }
        let now = Instant::now();
        let late = |(key, request): (&IdKey, &SidrRequest)| (request.until <= now).then_some(*key);
        let late: Vec<_> = self.asking.iter().filter_map(late).collect();
        for key in late {
            if let Some(request) = self.asking.remove(&key) {
                self.silent(request);
            }
        }
        Ok(())
    }

    fn happened(&mut self, event: CmEvent) {
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
                let answer = self.resolver.service.parse_answer(&event.private_data);
                answer.map_err(|why| {
                    let why = format!("the listener there is no endpoint of this kind: {why}");
                    self.error(number, Errno::ECONNREFUSED, &why)
                })
            }
            // A status above 0 comes from the peer (IBTA 1.5 §12.11.2).
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

    /// A request has timed out.
    fn silent(&mut self, request: SidrRequest) {
        let SidrRequest {
            number,
            reached,
            deadline,
            wait,
            ..
        } = request;
        // Its identifier goes first: later events of it do not belong to the next request.
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
        let why = "its host is reachable, but no endpoint answers there (setting resolve_timeout)";
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
        let at = self.all[number].at;
        Error::new(errno, "resolve", format!("socket address {at}")).mend(why)
    }
}
