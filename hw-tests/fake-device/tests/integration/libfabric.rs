//! Doorbells of an application of libfabric's, through the stock library and the plugin. It marks
//! the sends that others follow (fi_msg(3), `FI_MORE`).

use crate::plugin;
use std::ptr::null_mut;
use std::time::{Duration, Instant};

use crate::client::{Info, Libfabric, Opened, Party};
use ferro_fi::abi::{
    FI_COMPLETION, FI_MORE, FI_MSG, fi_addr_t, fi_cq_tagged_entry, fi_ep_type, fi_msg,
    fi_msg_tagged, fi_threading,
};
use ferrofabric_fake_device::control::{FakeDevice, ROCE};

const PATIENCE: Duration = Duration::from_secs(60);

const POST: &str = "ibv_post_send";

/// Messages of a run that one doorbell is rung for.
const RUN: usize = 32;

const BYTES: usize = 8;

#[derive(Clone, Copy, Debug, PartialEq)]
enum LibfabricMessages {
    Tagged,
    Datagrams,
}

/// One test: a process has one environment, which says where the plugin is.
#[test]
fn a_run_rings_once_when_it_ends() {
    let Some((device, libfabric)) = plugin::load(&[]) else {
        return;
    };
    for kind in [LibfabricMessages::Tagged, LibfabricMessages::Datagrams] {
        let pair = LibfabricPair::open(libfabric, kind);
        for tag in 0..3 {
            pair.exchange(tag);
        }
        for _ in 0..2 {
            pair.run(&device);
        }
        pair.close();
    }
    assert_eq!(device.misuse(), "");
}

struct LibfabricPair {
    kind: LibfabricMessages,
    opened: [Opened; 2],
    from: LibfabricEnd,
    to: LibfabricEnd,
}

struct LibfabricEnd {
    party: Party,
    peer: fi_addr_t,
}

impl LibfabricPair {
    fn open(libfabric: &Libfabric, kind: LibfabricMessages) -> Self {
        let info = offer(libfabric, kind);
        let opened = [Opened::new(&info), Opened::new(&info)];
        let [from, to] = [&opened[0], &opened[1]].map(|opened| opened.uncounted_party(&info));
        let (to_from, to_to) = (to.insert(&from.name()), from.insert(&to.name()));
        Self {
            kind,
            opened,
            from: LibfabricEnd {
                party: from,
                peer: to_to,
            },
            to: LibfabricEnd {
                party: to,
                peer: to_from,
            },
        }
    }

    /// A message there and one back; the first ones connect.
    fn exchange(&self, tag: u64) {
        for (from, to) in [(&self.from, &self.to), (&self.to, &self.from)] {
            let (bytes, mut room) = ([7; BYTES], [0; BYTES]);
            to.receive(self.kind, &mut room, tag);
            let until = Instant::now() + PATIENCE;
            let mut sent = from.send(self.kind, &bytes, tag, FI_COMPLETION);
            while sent != 0 {
                assert_eq!(sent, -(libc::EAGAIN as isize));
                assert!(Instant::now() < until, "no way for {:?}", self.kind);
                from.read();
                to.read();
                sent = from.send(self.kind, &bytes, tag, FI_COMPLETION);
            }
            self.come_to_rest((from, 1), (to, 1));
            assert_eq!(room, bytes);
        }
    }

    /// Messages all but the last of which say that another follows.
    fn run(&self, device: &FakeDevice) {
        let messages: Vec<_> = (0..RUN).map(|n| [n as u8 + 1; BYTES]).collect();
        let mut rooms = vec![[0; BYTES]; RUN];
        for (tag, room) in (0..).zip(&mut rooms) {
            self.to.receive(self.kind, room, tag);
        }
        let before = device.calls(POST);
        for (tag, bytes) in messages.iter().enumerate() {
            assert_eq!(device.calls(POST), before, "{tag} of {:?}", self.kind);
            let more = if tag + 1 < RUN { FI_MORE } else { 0 };
            let flags = FI_COMPLETION | more;
            let sent = self.from.send(self.kind, bytes, tag as u64, flags);
            assert_eq!(sent, 0, "{tag} of {:?}", self.kind);
        }
        assert_eq!(device.calls(POST), before + 1, "{:?}", self.kind);
        self.come_to_rest((&self.from, RUN), (&self.to, RUN));
        assert_eq!(rooms, messages, "{:?}", self.kind);
    }

    /// Both sides read as many completions.
    fn come_to_rest(&self, (a, of_a): (&LibfabricEnd, usize), (b, of_b): (&LibfabricEnd, usize)) {
        let until = Instant::now() + PATIENCE;
        let (mut at_a, mut at_b) = (0, 0);
        while (at_a, at_b) != (of_a, of_b) {
            assert!(
                Instant::now() < until,
                "{at_a} and {at_b} of {:?}",
                self.kind
            );
            at_a += usize::from(a.read());
            at_b += usize::from(b.read());
        }
    }

    fn close(self) {
        for end in [self.from, self.to] {
            end.party.close();
        }
        for opened in self.opened {
            opened.close();
        }
    }
}

impl LibfabricEnd {
    /// `fi_tsendmsg` or `fi_sendmsg`. The tests keep the bytes until it completes.
    fn send(&self, kind: LibfabricMessages, bytes: &[u8; BYTES], tag: u64, flags: u64) -> isize {
        let iov = libc::iovec {
            iov_base: bytes.as_ptr().cast_mut().cast(),
            iov_len: BYTES,
        };
        let (msg_iov, desc, iov_count, context) = (&raw const iov, null_mut(), 1, null_mut());
        let (ep, addr, data) = (self.party.ep, self.peer, 0);
        // SAFETY: as fi_msg(3) and fi_tagged(3) have it; the endpoint is open.
        unsafe {
            match kind {
                LibfabricMessages::Tagged => {
                    let msg = fi_msg_tagged {
                        msg_iov,
                        desc,
                        iov_count,
                        addr,
                        tag,
                        ignore: 0,
                        context,
                        data,
                    };
                    (*(*ep).tagged).sendmsg.unwrap()(ep, &raw const msg, flags)
                }
                LibfabricMessages::Datagrams => {
                    let msg = fi_msg {
                        msg_iov,
                        desc,
                        iov_count,
                        addr,
                        context,
                        data,
                    };
                    (*(*ep).msg).sendmsg.unwrap()(ep, &raw const msg, flags)
                }
            }
        }
    }

    /// `fi_trecv` or `fi_recv`. The tests keep the memory until it completes.
    fn receive(&self, kind: LibfabricMessages, room: &mut [u8; BYTES], tag: u64) {
        let (ep, into) = (self.party.ep, room.as_mut_ptr());
        let posted = match kind {
            LibfabricMessages::Tagged => self.party.receive(into, BYTES, null_mut(), tag),
            // SAFETY: as fi_msg(3) has it; the endpoint is open.
            LibfabricMessages::Datagrams => unsafe {
                let recv = (*(*ep).msg).recv.unwrap();
                recv(ep, into.cast(), BYTES, null_mut(), u64::MAX, null_mut())
            },
        };
        assert_eq!(posted, 0);
    }

    /// Whether a completion was there.
    fn read(&self) -> bool {
        let mut entry = fi_cq_tagged_entry::default();
        match self.party.poll(&mut entry) {
            1 => true,
            read => {
                assert_eq!(read, -(libc::EAGAIN as isize));
                false
            }
        }
    }
}

fn offer(libfabric: &Libfabric, kind: LibfabricMessages) -> Info<'_> {
    let domain = format!("{ROCE}:1");
    if kind == LibfabricMessages::Tagged {
        return libfabric.discover(&domain, fi_threading::FI_THREAD_DOMAIN);
    }
    let hints = libfabric.hints();
    // SAFETY: the hints are the test's; the string is libc's.
    unsafe {
        (*hints.info).caps = FI_MSG;
        (*(*hints.info).ep_attr).type_ = fi_ep_type::FI_EP_DGRAM;
        let attr = &mut *(*hints.info).domain_attr;
        attr.threading = fi_threading::FI_THREAD_DOMAIN;
        attr.name = libc::strndup(domain.as_ptr().cast(), domain.len());
    }
    let info = libfabric.ask(libfabric.version, None, None, 0, Some(&hints));
    info.expect("an offer of datagrams")
}
