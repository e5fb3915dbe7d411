//! Memory descriptors of an application of libfabric's, through the stock library and the plugin.
//! The domain requires no registration (`mr_mode` 0), so that a descriptor may be anything
//! (fi_mr(3), `FI_MR_LOCAL`): a descriptor counts as none unless it is a region for that buffer and
//! that use.
//!
//! Item a.

use crate::plugin;
use std::ffi::c_void;
use std::ptr::{null_mut, without_provenance_mut};
use std::time::{Duration, Instant};

use crate::client::{Info, Libfabric, Opened, Party, close};
use ferro_fi::abi::{
    FI_MSG, FI_RECV, FI_SEND, fi_addr_t, fi_cq_tagged_entry, fi_ep_type, fi_threading, fid_mr,
};
use ferrofabric_fake_device::control::{FakeDevice, ROCE};
use ferrofabric_verbs_sys::ibv_qp_type;

const PATIENCE: Duration = Duration::from_secs(60);

/// Messages that go eagerly, in parts, and read by their receiver.
const LENGTHS: [usize; 4] = [40, 2_000, 9_000, 1 << 20];

const LARGEST: usize = 1 << 20;

/// One test: a process has one environment, which says where the plugin is.
#[test]
fn a_descriptor_that_is_not_the_buffers_is_none() {
    // Each registration of ours is made anew, and counted.
    let Some((device, libfabric)) = plugin::load(&[("FERRO_MR_CACHE", "off")]) else {
        return;
    };
    the_device_is_shown(libfabric);
    one_bad_descriptor_among_many(libfabric);
    regions_without_the_right(libfabric);
    descriptors_of_every_kind(libfabric);
    datagrams(libfabric);
    good_ones_are_used(libfabric, &device);
    lists_are_read_in_place(libfabric, &device);
    regions_that_are_closed_meanwhile(libfabric, &device);
    assert_eq!(device.misuse(), "");
}

/// Two endpoints, each with memory of its own.
struct DescriptorPair {
    opened: Opened,
    from: Party,
    to: Party,
    to_to: fi_addr_t,
    source: Vec<u8>,
    sink: Vec<u8>,
    tag: u64,
}

impl DescriptorPair {
    fn open(info: &Info<'_>) -> Self {
        let opened = Opened::new(info);
        let (from, to) = (opened.uncounted_party(info), opened.uncounted_party(info));
        let to_to = from.insert(&to.name());
        to.insert(&from.name());
        let source = (0..LARGEST).map(|n| (n * 7 + n / 251) as u8).collect();
        Self {
            opened,
            from,
            to,
            to_to,
            source,
            sink: vec![0; LARGEST],
            tag: 0,
        }
    }

    fn post(&mut self, len: usize, sending: *mut c_void, receiving: *mut c_void) {
        self.tag += 1;
        let at = self.sink.as_mut_ptr();
        assert_eq!(self.to.receive(at, len, receiving, self.tag), 0);
        self.send(len, sending, self.tag);
    }

    fn send(&self, len: usize, desc: *mut c_void, tag: u64) {
        let until = Instant::now() + PATIENCE;
        let mut entry = fi_cq_tagged_entry::default();
        let bytes = &self.source[..len];
        // SAFETY: the source stays until the message has completed.
        while unsafe { self.from.send(bytes, desc, self.to_to, tag) } != 0 {
            assert!(Instant::now() < until, "no way for {len} bytes");
            assert_eq!(self.to.poll(&mut entry), -(libc::EAGAIN as isize));
            assert_eq!(self.from.poll(&mut entry), -(libc::EAGAIN as isize));
        }
    }

    /// Both sides complete as many operations, and none fails.
    fn finish(&self, count: usize, what: &str) {
        let until = Instant::now() + PATIENCE;
        let mut entry = fi_cq_tagged_entry::default();
        let (mut sent, mut received) = (0, 0);
        while (sent, received) != (count, count) {
            for (party, done) in [(&self.from, &mut sent), (&self.to, &mut received)] {
                match party.poll(&mut entry) {
                    1 => *done += 1,
                    read => assert_eq!(
                        read,
                        -(libc::EAGAIN as isize),
                        "{what}, after {count} operations"
                    ),
                }
            }
            assert!(
                Instant::now() < until,
                "{what}: {sent} sent and {received} received of {count}"
            );
        }
    }

    /// A message of each length arrives whole.
    fn all_arrive(&mut self, sending: *mut c_void, receiving: *mut c_void, what: &str) {
        for len in LENGTHS {
            self.sink.fill(0xee);
            self.post(len, sending, receiving);
            self.finish(1, &format!("{what}, {len} bytes"));
            assert!(
                self.sink[..len] == self.source[..len],
                "{what}, {len} bytes"
            );
            assert!(
                self.sink[len..].iter().all(|x| *x == 0xee),
                "{what}, {len} bytes"
            );
        }
    }

    /// A region of each side's memory, and their descriptors.
    fn registered(&self) -> ([*mut fid_mr; 2], [*mut c_void; 2]) {
        let both = FI_SEND | FI_RECV;
        let regions = [&self.source, &self.sink].map(|memory| register(&self.opened, memory, both));
        let descs = regions.map(desc_of);
        assert!(descs.iter().all(|desc| !desc.is_null()));
        (regions, descs)
    }

    fn close(self) {
        self.from.close();
        self.to.close();
        self.opened.close();
    }
}

/// Of 20 sends one has a descriptor that is none: all of them arrive.
fn one_bad_descriptor_among_many(libfabric: &Libfabric) {
    let mut pair = DescriptorPair::open(&offer(libfabric));
    pair.all_arrive(null_mut(), null_mut(), "without descriptors");
    for n in 0..20 {
        let desc = without_provenance_mut(if n == 10 { 0xdead_beef } else { 0 });
        pair.post(2_000, desc, null_mut());
    }
    pair.finish(20, "the 11th of 20 sends has a descriptor that is none");
    assert!(pair.sink[..2_000] == pair.source[..2_000]);
    pair.close();
}

/// Memory that was registered for receives is sent, and the other way round.
fn regions_without_the_right(libfabric: &Libfabric) {
    let mut pair = DescriptorPair::open(&offer(libfabric));
    let for_receives = register(&pair.opened, &pair.source, FI_RECV);
    let for_sends = register(&pair.opened, &pair.sink, FI_SEND);
    let what = "regions for the other direction";
    pair.all_arrive(desc_of(for_receives), desc_of(for_sends), what);
    pair.all_arrive(null_mut(), null_mut(), "afterwards");
    close(for_receives.cast());
    close(for_sends.cast());
    pair.close();
}

/// Numbers that are none, regions that are closed, regions of other memory and of other domains.
fn descriptors_of_every_kind(libfabric: &Libfabric) {
    let info = offer(libfabric);
    let mut pair = DescriptorPair::open(&info);
    let other = DescriptorPair::open(&info);
    let both = FI_SEND | FI_RECV;
    let closed = register(&pair.opened, &pair.source, both);
    let was = desc_of(closed);
    assert_eq!(close(closed.cast()), 0);
    let elsewhere = vec![0u8; 4096];
    let of_others = register(&pair.opened, &elsewhere, both);
    let part = register(&pair.opened, &pair.source[..1_000], both);
    let foreign = register(&other.opened, &pair.source, both);
    let live = register(&pair.opened, &pair.source, both);
    let bits = desc_of(live).addr();
    let mut all = vec![
        was,
        desc_of(of_others),
        desc_of(part),
        desc_of(foreign),
        desc_of(live),
        live.cast(),
    ];
    all.extend((0..64).map(|bit| without_provenance_mut(bits ^ (1 << bit))));
    all.extend([1, 2, 3, usize::MAX, usize::MAX - 1, 1 << 63, 1 << 32].map(without_provenance_mut));
    for desc in all {
        pair.all_arrive(desc, desc, &format!("descriptor {desc:p}"));
    }
    for mr in [of_others, part, foreign, live] {
        assert_eq!(close(mr.cast()), 0);
    }
    other.close();
    pair.close();
}

/// Datagrams, where receives with a descriptor lie with the device.
fn datagrams(libfabric: &Libfabric) {
    let hints = libfabric.hints();
    let domain = format!("{ROCE}:1");
    // SAFETY: the hints are the test's; the string is libc's.
    unsafe {
        (*hints.info).caps = FI_MSG;
        (*(*hints.info).ep_attr).type_ = fi_ep_type::FI_EP_DGRAM;
        let attr = &mut *(*hints.info).domain_attr;
        attr.threading = fi_threading::FI_THREAD_DOMAIN;
        attr.name = libc::strndup(domain.as_ptr().cast(), domain.len());
    }
    let info = libfabric.ask(libfabric.version, None, None, 0, Some(&hints));
    let mut pair = DescriptorPair::open(&info.unwrap());
    let both = FI_SEND | FI_RECV;
    let regions = [
        register(&pair.opened, &pair.source, both),
        register(&pair.opened, &pair.sink, both),
        register(&pair.opened, &pair.source, FI_RECV),
        register(&pair.opened, &pair.sink, FI_SEND),
    ];
    let closed = register(&pair.opened, &pair.sink, both);
    let was = desc_of(closed);
    assert_eq!(close(closed.cast()), 0);
    let mut descs = regions.map(desc_of).to_vec();
    descs.extend([was, without_provenance_mut(0xdead_beef), null_mut()]);
    const BYTES: usize = 1_000;
    for &sending in &descs {
        for &receiving in &descs {
            pair.sink.fill(0xee);
            let (ep, into) = (pair.to.ep, pair.sink.as_mut_ptr().cast());
            // SAFETY: as fi_msg(3) has it; the pair keeps its memory.
            unsafe {
                let recv = (*(*ep).msg).recv.unwrap();
                let posted = recv(ep, into, LARGEST, receiving, u64::MAX, null_mut());
                assert_eq!(posted, 0);
                let (ep, from) = (pair.from.ep, pair.source.as_ptr().cast());
                let send = (*(*ep).msg).send.unwrap();
                let until = Instant::now() + PATIENCE;
                while send(ep, from, BYTES, sending, pair.to_to, null_mut()) != 0 {
                    assert!(Instant::now() < until, "no way for a datagram");
                    let mut entry = fi_cq_tagged_entry::default();
                    pair.from.poll(&mut entry);
                }
            }
            let what = format!("a datagram with {sending:p} into {receiving:p}");
            pair.finish(1, &what);
            assert!(pair.sink[..BYTES] == pair.source[..BYTES], "{what}");
        }
    }
    for mr in regions {
        assert_eq!(close(mr.cast()), 0);
    }
    pair.close();
}

/// With regions of their own, large messages register nothing but the source that their receiver
/// reads: its key opens the message alone, whatever region the application has.
fn good_ones_are_used(libfabric: &Libfabric, device: &FakeDevice) {
    let mut pair = DescriptorPair::open(&offer(libfabric));
    pair.all_arrive(null_mut(), null_mut(), "the first, without regions");
    let unregistered = device.live().regions;
    let (regions, [sending, receiving]) = pair.registered();
    let registered = device.calls("ibv_reg_mr");
    for _ in 0..4 {
        pair.all_arrive(sending, receiving, "with regions");
    }
    assert_eq!(device.calls("ibv_reg_mr"), registered + 4);
    close_all(regions);
    assert_eq!(device.live().regions, unregistered);
    pair.close();
}

/// A large message is read into the buffers of a list themselves, wherever they lie: with regions
/// of the application's the device needs no other memory than the source.
///
/// Item g.
fn lists_are_read_in_place(libfabric: &Libfabric, device: &FakeDevice) {
    let mut pair = DescriptorPair::open(&offer(libfabric));
    pair.all_arrive(null_mut(), null_mut(), "the first, without regions");
    let (regions, [sending, receiving]) = pair.registered();
    let registered = device.calls("ibv_reg_mr");
    // Places in the sink and lengths, in the order of the list.
    let list = [
        (900_000, 70_001),
        (0, 1),
        (100, 200_000),
        (300_000, 400_000),
    ];
    let len = list.iter().map(|(_, len)| len).sum();
    pair.sink.fill(0xee);
    let at = pair.sink.as_mut_ptr();
    let iov = list.map(|(start, len)| libc::iovec {
        iov_base: at.wrapping_add(start).cast(),
        iov_len: len,
    });
    let mut descs = [receiving; 4];
    let ep = pair.to.ep;
    // SAFETY: as fi_tagged(3) has it; the pair keeps its memory.
    let posted = unsafe {
        let recvv = (*(*ep).tagged).recvv.unwrap();
        let (iov, descs, any) = (iov.as_ptr(), descs.as_mut_ptr(), u64::MAX);
        recvv(ep, iov.cast(), descs, list.len(), any, 77, 0, null_mut())
    };
    assert_eq!(posted, 0);
    pair.send(len, sending, 77);
    pair.finish(1, "a message for a list");
    let mut sent = pair.source.iter();
    for (start, len) in list {
        let came = &pair.sink[start..start + len];
        assert!(came.iter().eq(sent.by_ref().take(len)), "{len} bytes");
    }
    assert_eq!(device.calls("ibv_reg_mr"), registered + 1, "the source");
    close_all(regions);
    pair.close();
}

/// A region is closed while messages that name it are under way: the device has it until they are
/// over.
///
/// Item a.
fn regions_that_are_closed_meanwhile(libfabric: &Libfabric, device: &FakeDevice) {
    let mut pair = DescriptorPair::open(&offer(libfabric));
    pair.all_arrive(null_mut(), null_mut(), "the first, without regions");
    let unregistered = device.live().regions;
    for breaks in [false, true] {
        for len in LENGTHS {
            let what = format!("regions closed meanwhile, {len} bytes, breaks: {breaks}");
            let (regions, [sending, receiving]) = pair.registered();
            pair.sink.fill(0xee);
            device.hold(true);
            for _ in 0..3 {
                pair.post(len, sending, receiving);
            }
            close_all(regions);
            if breaks {
                // The posted messages are sent again, over another connection.
                let all = device.queue_pairs();
                let connection = all.iter().find(|qp| qp.kind == ibv_qp_type::IBV_QPT_RC.0);
                device.break_queue_pair(connection.expect("a connection").number);
            }
            device.hold(false);
            pair.finish(3, &what);
            assert!(pair.sink[..len] == pair.source[..len], "{what}");
            pair.all_arrive(sending, receiving, "afterwards");
        }
    }
    assert_eq!(device.live().regions, unregistered);
    pair.close();
}

/// `fi_info -v`: the offer that it shows names the device (fi_nic(3)).
///
/// Item h.
fn the_device_is_shown(libfabric: &Libfabric) {
    let text = offer(libfabric).text();
    for line in [
        "nic:",
        "fi_device_attr:",
        "fi_link_attr:",
        "state: FI_LINK_UP",
    ] {
        assert!(text.contains(line), "{line} in {text}");
    }
    let name = format!("name: {ROCE}\n");
    assert!(text.contains(&name), "{name} in {text}");
}

fn register(opened: &Opened, memory: &[u8], access: u64) -> *mut fid_mr {
    let mut mr = null_mut();
    // SAFETY: as fi_mr(3) has it; the pair keeps its memory.
    let registered = unsafe {
        let reg = (*(*opened.domain).mr).reg.unwrap();
        let (fid, at, len) = (opened.domain.cast(), memory.as_ptr().cast(), memory.len());
        reg(fid, at, len, access, 0, 0, 0, &raw mut mr, null_mut())
    };
    assert_eq!(registered, 0);
    mr
}

fn close_all(regions: [*mut fid_mr; 2]) {
    for mr in regions {
        assert_eq!(close(mr.cast()), 0);
    }
}

fn desc_of(mr: *mut fid_mr) -> *mut c_void {
    // SAFETY: the region is open.
    unsafe { (*mr).mem_desc }
}

fn offer(libfabric: &Libfabric) -> Info<'_> {
    libfabric.discover(&format!("{ROCE}:1"), fi_threading::FI_THREAD_DOMAIN)
}
