//! Endpoints as an application of libfabric's binds and sets them up: fi_endpoint(3).

use crate::{client, rma, support, two};
use std::ffi::c_int;
use std::ptr::null_mut;

use client::{Info, Opened, close};
use ferro_fi::abi::{
    FI_ATOMIC, FI_EBUSY, FI_ENABLE, FI_ENOPROTOOPT, FI_MSG, FI_MULTI_RECV, FI_OPT_ENDPOINT,
    FI_OPT_MIN_MULTI_RECV, FI_READ, FI_RECV, FI_RMA, FI_SEND, FI_SOURCE, FI_TRANSMIT, FI_WRITE,
    fi_av_attr, fi_av_type, fi_cq_attr, fi_ep_type, fid, fid_av, fid_cq, fid_ep, fid_eq,
};
use rma::ask;
use support::{has_device, skip};
use two::{EAGAIN, Two, asking_everywhere, control, everywhere, next, over_verbs, read, shape};

/// An endpoint that is bound to all that it needs, and not enabled yet.
struct Bound {
    ep: *mut fid_ep,
    av: *mut fid_av,
    cq: *mut fid_cq,
}

impl Bound {
    fn open(opened: &Opened, info: &Info<'_>) -> Self {
        let (mut ep, mut av, mut cq) = (null_mut(), null_mut(), null_mut());
        let mut av_attr = fi_av_attr {
            type_: fi_av_type::FI_AV_TABLE,
            ..fi_av_attr::default()
        };
        let mut cq_attr = fi_cq_attr::default();
        let domain = opened.domain;
        // SAFETY: as the manual pages have it.
        let codes = unsafe {
            [
                call!(
                    domain,
                    ops.av_open(&raw mut av_attr, &raw mut av, null_mut())
                ),
                call!(
                    domain,
                    ops.cq_open(&raw mut cq_attr, &raw mut cq, null_mut())
                ),
                call!(domain, ops.endpoint(info.info, &raw mut ep, null_mut())),
            ]
        };
        assert_eq!(codes, [0; 3]);
        let bound = Self { ep, av, cq };
        assert_eq!(bound.bind(av.cast(), 0), 0);
        assert_eq!(bound.bind(cq.cast(), FI_TRANSMIT | FI_RECV), 0);
        bound
    }

    fn bind(&self, to: *mut fid, flags: u64) -> c_int {
        let fid: *mut fid = self.ep.cast();
        // SAFETY: the endpoint and what it is bound to are open.
        unsafe { (*(*fid).ops).bind.unwrap()(fid, to, flags) }
    }

    fn enable(&self) -> c_int {
        control(self.ep.cast(), FI_ENABLE, null_mut())
    }

    /// `fi_getopt` of `FI_OPT_MIN_MULTI_RECV`.
    fn least(&self) -> Result<usize, c_int> {
        let (mut least, mut size) = (0usize, size_of::<usize>());
        let (level, name) = (FI_OPT_ENDPOINT, FI_OPT_MIN_MULTI_RECV);
        // SAFETY: the option is a size.
        let code = unsafe {
            let getopt = (*(*self.ep).ops).getopt.unwrap();
            let to = (&raw mut least).cast();
            getopt(self.ep.cast(), level, name, to, &raw mut size)
        };
        match code {
            0 => Ok(least),
            error => Err(error),
        }
    }

    /// `fi_setopt` of the same.
    fn set_least(&self, least: usize) -> c_int {
        let (level, name) = (FI_OPT_ENDPOINT, FI_OPT_MIN_MULTI_RECV);
        // SAFETY: the option is a size.
        unsafe {
            let setopt = (*(*self.ep).ops).setopt.unwrap();
            let (from, size) = ((&raw const least).cast(), size_of::<usize>());
            setopt(self.ep.cast(), level, name, from, size)
        }
    }

    fn close(self) {
        for fid in [self.ep.cast(), self.cq.cast(), self.av.cast()] {
            assert_eq!(close(fid), 0);
        }
    }
}

/// An endpoint may have an event queue, which stays as long as it does.
#[test]
fn an_event_queue_is_bound() {
    everywhere("an_event_queue_is_bound", |info| {
        let opened = Opened::new(info);
        let bound = Bound::open(&opened, info);
        let mut eq: *mut fid_eq = null_mut();
        // SAFETY: as fi_eq(3) has it.
        let made = unsafe {
            call!(
                opened.fabric,
                ops.eq_open(null_mut(), &raw mut eq, null_mut())
            )
        };
        assert_eq!(made, 0);
        assert_eq!(bound.bind(eq.cast(), 0), 0);
        assert_eq!(bound.enable(), 0);
        assert_eq!(close(eq.cast()), -FI_EBUSY);
        bound.close();
        assert_eq!(close(eq.cast()), 0);
        opened.close();
    });
}

/// The directions of messages say nothing about an endpoint without messages, and its queue may be
/// bound for both: Sandia OpenSHMEM opens its endpoints so.
#[test]
fn directions_without_messages() {
    asking_everywhere("directions_without_messages", |libfabric, domain| {
        let caps = FI_RMA | FI_ATOMIC | FI_READ | FI_WRITE;
        let info = ask(libfabric, (libfabric.version, domain), caps, 0, |_| {}).unwrap();
        let opened = Opened::new(&info);
        // SAFETY: the offer is there.
        unsafe {
            (*info.info).caps = caps | FI_RECV;
            (*(*info.info).tx_attr).caps = caps | FI_RECV;
            (*(*info.info).rx_attr).caps = FI_RECV;
        }
        let bound = Bound::open(&opened, &info);
        assert_eq!(bound.enable(), 0);
        bound.close();
        // Alone they are no request.
        let mut ep: *mut fid_ep = null_mut();
        // SAFETY: as above; there is room for the endpoint.
        let refused = unsafe {
            (*info.info).caps = FI_SEND | FI_RECV;
            call!(
                opened.domain,
                ops.endpoint(info.info, &raw mut ep, null_mut())
            )
        };
        assert_eq!(refused, -libc::EINVAL);
        opened.close();
    });
}

/// The application can read and set the least room of multi-receive buffers at any time.
#[test]
fn the_least_room_of_multi_receives() {
    everywhere("the_least_room_of_multi_receives", |info| {
        let opened = Opened::new(info);
        let (plain, set) = (Bound::open(&opened, info), Bound::open(&opened, info));
        assert_eq!(plain.least(), Ok(64));
        assert_eq!(set.set_least(100), 0);
        assert_eq!(set.least(), Ok(100));
        for bound in [&plain, &set] {
            assert_eq!(bound.enable(), 0);
        }
        assert_eq!((plain.least(), set.least()), (Ok(64), Ok(100)));
        plain.close();
        set.close();
        opened.close();
    });
}

/// Datagrams have no multi-receives, and an endpoint for them is enabled whatever was tried to be
/// set.
#[test]
fn datagrams_have_no_multi_receives() {
    if !has_device() {
        return skip("this machine has no RDMA device");
    }
    over_verbs("datagrams_have_no_multi_receives", |libfabric| {
        let hints = libfabric.hints();
        // SAFETY: the hints are the test's.
        unsafe {
            (*hints.info).caps = FI_MSG | FI_SOURCE;
            (*(*hints.info).ep_attr).type_ = fi_ep_type::FI_EP_DGRAM;
        }
        let info = libfabric.ask(libfabric.version, None, None, 0, Some(&hints));
        let info = info.expect("an offer of datagrams");
        let opened = Opened::new(&info);
        let bound = Bound::open(&opened, &info);
        assert_eq!(bound.set_least(100), -FI_ENOPROTOOPT);
        assert_eq!(bound.least(), Err(-FI_ENOPROTOOPT));
        assert_eq!(bound.enable(), 0);
        assert_eq!(bound.set_least(100), -FI_ENOPROTOOPT);
        assert_eq!(bound.least(), Err(-FI_ENOPROTOOPT));
        bound.close();
        opened.close();
    });
}

/// Receives that are multi-receives by default are so where they are untagged: a tagged one is for
/// one message.
#[test]
fn a_tagged_receive_is_for_one_message() {
    everywhere("a_tagged_receive_is_for_one_message", |info| {
        // SAFETY: the offer is there.
        unsafe { (*(*info.info).rx_attr).op_flags = FI_MULTI_RECV };
        let two = Two::open(info, shape());
        let mut rooms = [[0u8; 4096]; 2];
        for (context, room) in (1..).zip(&mut rooms) {
            two.b.receive(room, 7, context);
        }
        let messages = [[1u8; 8], [2; 8]];
        for message in &messages {
            two.a.senddata(message, 0, two.to_b, 7);
        }
        for context in [1, 2] {
            let done = next(two.b.rx).unwrap();
            assert_eq!((done.op_context as usize, done.len), (context, 8));
            assert_eq!(done.flags & FI_MULTI_RECV, 0);
        }
        assert_eq!(read(two.b.rx).unwrap_err(), EAGAIN);
        assert_eq!(rooms.map(|room| room[0]), [1, 2]);
        two.close();
    });
}
