//! Reads, writes and atomics on a peer's memory.

use ferrofabric_hw_tests::{DeviceBuffer, Rig, completions, one_completion};
use ferrofabric_verbs::raw::mr::Access;
use ferrofabric_verbs::raw::post::{RecvRequest, RemoteMemory, SendFlags, SendRequest};
use ferrofabric_verbs::raw::qp::SendOps;
use ferrofabric_verbs_sys::{ibv_wc_flags, ibv_wc_opcode, ibv_wc_status};
use serial_test::file_serial;

const LEN: usize = 300_000;

fn remote(buffer: &DeviceBuffer, offset: usize) -> RemoteMemory {
    RemoteMemory {
        addr: buffer.region().addr() as u64 + offset as u64,
        rkey: buffer.region().rkey(),
    }
}

#[test]
#[file_serial(verbs)]
fn write_and_read_back() {
    let Some(rig) = Rig::open() else { return };
    let cq = rig.cq(64, true);
    let config = rig.config(&cq, None, Some(SendOps::WRITE | SendOps::READ));
    let (left, _right) = rig.connected_pair(&config, &config);
    let (here, there, back) = (rig.buffer(LEN), rig.buffer(LEN), rig.buffer(LEN));
    for (round, len) in [1usize, 4096, 5000, LEN - 9].into_iter().enumerate() {
        for extended in [false, true] {
            let message = DeviceBuffer::pattern(round as u32 * 2 + u32::from(extended), len);
            here.write(0, &message);
            there.fill(0x11);
            back.fill(0x22);
            let target = remote(&there, 5);
            let out = here.region().sge(0, len as u32).expect("within");
            let home = back.region().sge(2, len as u32).expect("within");
            // SAFETY: all memory is registered, and left alone until the completions.
            unsafe {
                if extended {
                    let mut batch = left.start_batch().expect("created extended");
                    batch.write(1, SendFlags::empty(), target).entry(out);
                    // The read follows the write on the wire, and so finds what it wrote.
                    batch.read(2, SendFlags::SIGNALED, target).entries(&[home]);
                    batch.complete().unwrap();
                } else {
                    let mut requests = [
                        SendRequest::write(1, [out], target),
                        SendRequest::read(2, [home], target).flags(SendFlags::SIGNALED),
                    ];
                    SendRequest::post_all(&mut requests, &left).unwrap();
                }
            }
            let wc = one_completion(&cq);
            assert_eq!((wc.wr_id, wc.opcode), (2, ibv_wc_opcode::IBV_WC_RDMA_READ));
            assert_eq!(there.read(5, len), message);
            assert_eq!(there.read(0, 5), [0x11; 5]);
            assert_eq!(there.read(5 + len, 4), [0x11; 4]);
            assert_eq!(back.read(2, len), message);
            assert_eq!(
                (back.read(0, 2), back.read(2 + len, 4)),
                (vec![0x22; 2], vec![0x22; 4])
            );
        }
    }
}

#[test]
#[file_serial(verbs)]
fn a_write_with_immediate_data_tells_the_peer() {
    let Some(rig) = Rig::open() else { return };
    let cq = rig.cq(64, false);
    let (left, right) =
        rig.connected_pair(&rig.config(&cq, None, None), &rig.config(&cq, None, None));
    let (here, there) = (rig.buffer(4096), rig.buffer(4096));
    let message = DeviceBuffer::pattern(9, 4096);
    here.write(0, &message);
    let entry = here.region().sge(0, 4096).expect("within");
    // SAFETY: registered, and left alone until the completions. The receive takes no data.
    unsafe {
        RecvRequest::new(7, []).post(&right).unwrap();
        SendRequest::write(8, [entry], remote(&there, 0))
            .immediate(0xfeed_u32.to_be())
            .flags(SendFlags::SIGNALED)
            .post(&left)
            .unwrap();
    }
    let done = completions(&cq, 2);
    let told = done.iter().find(|wc| wc.wr_id == 7).expect("the receive");
    assert_eq!(told.opcode, ibv_wc_opcode::IBV_WC_RECV_RDMA_WITH_IMM);
    assert_ne!(told.wc_flags & ibv_wc_flags::IBV_WC_WITH_IMM.0, 0);
    // SAFETY: the flag says that immediate data is there.
    let data = unsafe { told.__bindgen_anon_1.imm_data };
    assert_eq!(u32::from_be(data), 0xfeed);
    assert_eq!(there.read(0, 4096), message);
}

#[test]
#[file_serial(verbs)]
fn atomics_fetch_what_was_there() {
    let Some(rig) = Rig::open() else { return };
    if !rig.context.limits().atomics {
        println!("SKIP: the device has no atomics");
        return;
    }
    let cq = rig.cq(64, true);
    let config = rig.config(&cq, None, Some(SendOps::COMPARE_SWAP | SendOps::FETCH_ADD));
    let (left, _right) = rig.connected_pair(&config, &config);
    let (fetched, there) = (rig.buffer(4096), rig.buffer(4096));
    let word = |buffer: &DeviceBuffer, at: usize| {
        u64::from_ne_bytes(buffer.read(at, 8).try_into().unwrap())
    };
    there.write(8, &100u64.to_ne_bytes());
    let target = remote(&there, 8);
    let entry = |slot: usize| fetched.region().sge(slot * 8, 8).expect("within");
    // SAFETY: all memory is registered, and left alone until the completions.
    unsafe {
        let flags = SendFlags::SIGNALED;
        SendRequest::fetch_add(0, [entry(0)], target, 5)
            .flags(flags)
            .post(&left)
            .unwrap();
        SendRequest::compare_swap(1, [entry(1)], target, 105, 7)
            .flags(flags)
            .post(&left)
            .unwrap();
        SendRequest::compare_swap(2, [entry(2)], target, 105, 9)
            .flags(flags)
            .post(&left)
            .unwrap();
        let mut batch = left.start_batch().expect("created extended");
        batch.fetch_add(3, flags, target, 3).entry(entry(3));
        batch
            .compare_swap(4, flags, target, 10, 1 << 40)
            .entry(entry(4));
        batch.complete().unwrap();
    }
    for wc in completions(&cq, 5) {
        assert_eq!(wc.status, ibv_wc_status::IBV_WC_SUCCESS);
    }
    let seen: Vec<_> = (0..5).map(|slot| word(&fetched, slot * 8)).collect();
    assert_eq!(seen, [100, 105, 7, 7, 10]);
    assert_eq!(
        (word(&there, 0), word(&there, 8), word(&there, 16)),
        (0, 1 << 40, 0)
    );
}

#[test]
#[file_serial(verbs)]
fn a_write_past_the_region_or_with_a_wrong_key_is_refused() {
    let Some(rig) = Rig::open() else { return };
    let read_only = DeviceBuffer::new(&rig.pd, 4096, Access::REMOTE_READ);
    let writable = rig.buffer(4096);
    writable.fill(0x33);
    read_only.fill(0x33);
    let past_the_end = remote(&writable, 4090);
    let wrong_key = RemoteMemory {
        rkey: writable.region().rkey() ^ 0x5a,
        ..remote(&writable, 0)
    };
    for target in [past_the_end, wrong_key, remote(&read_only, 0)] {
        // A refusal breaks the connection.
        let (left_cq, right_cq) = (rig.cq(64, false), rig.cq(64, false));
        let (left, _right) = rig.connected_pair(
            &rig.config(&left_cq, None, None),
            &rig.config(&right_cq, None, None),
        );
        let here = rig.buffer(4096);
        here.fill(0x44);
        let entry = here.region().sge(0, 64).expect("within");
        // SAFETY: registered, and left alone until the completion.
        unsafe {
            SendRequest::write(1, [entry], target)
                .flags(SendFlags::SIGNALED)
                .post(&left)
        }
        .unwrap();
        assert_eq!(
            completions(&left_cq, 1)[0].status,
            ibv_wc_status::IBV_WC_REM_ACCESS_ERR
        );
        assert_eq!(writable.read(0, 4096), [0x33; 4096]);
        assert_eq!(read_only.read(0, 4096), [0x33; 4096]);
    }
}

#[test]
#[file_serial(verbs)]
fn entries_do_not_leave_their_region() {
    let Some(rig) = Rig::open() else { return };
    let buffer = rig.buffer(4096);
    let region = buffer.region();
    assert!(region.sge(0, 4096).is_some() && region.sge(4096, 0).is_some());
    for (offset, len) in [
        (0, 4097),
        (1, 4096),
        (4097, 0),
        (usize::MAX, 1),
        (usize::MAX - 3, u32::MAX),
    ] {
        assert!(region.sge(offset, len).is_none(), "{offset} {len}");
    }
    let entry = region.sge(100, 20).expect("within");
    assert_eq!(
        (entry.addr, entry.length, entry.lkey),
        (region.addr() as u64 + 100, 20, region.lkey())
    );
}
