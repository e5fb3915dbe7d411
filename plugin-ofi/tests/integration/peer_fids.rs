//! `fi_export_fid` and `fi_import_fid` (fi_peer(3)) of each kind of object, over stock libfabric.

use crate::{client, owner, support, two};
use std::ffi::{c_int, c_void};
use std::ptr::null_mut;

use client::{Info, Opened, close};
use ferro_fi::abi::{
    FI_CLASS_AV, FI_CLASS_CQ, FI_CLASS_EP, FI_CLASS_EQ, FI_CLASS_MEM_MONITOR, FI_CLASS_MR,
    FI_CLASS_MR_CACHE, FI_CLASS_PEER_CQ, FI_CLASS_SRX_CTX, FI_EBADFLAGS, FI_EINVAL, FI_ENOSYS,
    FI_EOPBADSTATE, FI_EXPORT_FID, FI_PEER, FI_RECV, fi_cntr_attr, fi_cq_attr, fi_fid_export,
    fi_ops, fi_rx_attr, fid, fid_cntr, fid_cq, fid_ep,
};
use owner::receives::ReceiveOwner;
use owner::{OwnerCounter, OwnerQueue};
use support::edge::GuardedPage;
use two::{Side, alone, control, everywhere, shape};

/// Flags of a call that no object has.
const FLAGS: [u64; 4] = [1, FI_PEER, FI_RECV, 1 << 63];

/// An object of each kind.
struct EachObject {
    opened: Opened,
    side: Side,
    /// It is not enabled.
    disabled: *mut fid_ep,
    region: *mut fid,
    imported: ImportedObjects,
    memory: Box<[u8]>,
}

/// Objects that an owner has opened here, and its own objects.
struct ImportedObjects {
    srx: *mut fid_ep,
    cq: *mut fid_cq,
    cntr: *mut fid_cntr,
    receives: Box<ReceiveOwner>,
    _others: (Box<OwnerQueue>, Box<OwnerCounter>),
}

impl EachObject {
    fn open(info: &Info<'_>) -> Self {
        let opened = Opened::new(info);
        let side = Side::open(&opened, info, shape());
        let (mut disabled, domain) = (null_mut(), opened.domain);
        // SAFETY: the domain is open.
        let result = unsafe {
            call!(
                domain,
                ops.endpoint(info.info, &raw mut disabled, null_mut())
            )
        };
        assert_eq!(result, 0);
        let mut memory = vec![0; 4096].into_boxed_slice();
        Self {
            region: opened.register(&mut memory).cast(),
            imported: ImportedObjects::open(&opened, info),
            opened,
            side,
            disabled,
            memory,
        }
    }

    /// All of this provider's.
    fn all(&self) -> [*mut fid; 12] {
        let (opened, side, imported) = (&self.opened, &self.side, &self.imported);
        [
            opened.fabric.cast(),
            opened.domain.cast(),
            opened.eq.cast(),
            side.av.cast(),
            side.tx.cast(),
            side.sent.cast(),
            side.ep.cast(),
            self.disabled.cast(),
            self.region,
            imported.srx.cast(),
            imported.cq.cast(),
            imported.cntr.cast(),
        ]
    }

    fn close(self) {
        let imported = self.imported;
        for object in [
            self.disabled.cast(),
            self.region,
            imported.srx.cast(),
            imported.cq.cast(),
            imported.cntr.cast(),
        ] {
            assert_eq!(close(object), 0);
        }
        drop(self.memory);
        self.side.close();
        self.opened.close();
    }
}

impl ImportedObjects {
    fn open(opened: &Opened, info: &Info<'_>) -> Self {
        let receives = ReceiveOwner::new(info.version());
        let others = (OwnerQueue::new(), OwnerCounter::new());
        let (mut of_srx, mut of_cq) = (receives.context(), others.0.context());
        let mut of_cntr = others.1.context();
        let (mut srx, mut cq, mut cntr) = (null_mut(), null_mut(), null_mut());
        let mut rx_attr = fi_rx_attr {
            op_flags: FI_PEER,
            ..fi_rx_attr::default()
        };
        let mut cq_attr = fi_cq_attr {
            flags: FI_PEER,
            ..shape().cq
        };
        let mut cntr_attr = fi_cntr_attr {
            flags: FI_PEER,
            ..shape().cntr
        };
        let domain = opened.domain;
        let contexts: [*mut c_void; 3] = [
            (&raw mut of_srx).cast(),
            (&raw mut of_cq).cast(),
            (&raw mut of_cntr).cast(),
        ];
        // SAFETY: as fi_peer(3) has it.
        let results = unsafe {
            [
                call!(
                    domain,
                    ops.srx_ctx(&raw mut rx_attr, &raw mut srx, contexts[0])
                ),
                call!(
                    domain,
                    ops.cq_open(&raw mut cq_attr, &raw mut cq, contexts[1])
                ),
                call!(
                    domain,
                    ops.cntr_open(&raw mut cntr_attr, &raw mut cntr, contexts[2])
                ),
            ]
        };
        assert_eq!(results, [0; 3]);
        Self {
            srx,
            cq,
            cntr,
            receives,
            _others: others,
        }
    }
}

/// `fi_import_fid`, which is `fi_bind`.
fn import(to: *mut fid, object: *mut fid, flags: u64) -> c_int {
    // SAFETY: both are open, or the object is NULL.
    unsafe { (*(*to).ops).bind.unwrap()(to, object, flags) }
}

/// fi_peer(3): it is reserved for future use.
///
/// Covers: PEER-12
#[test]
fn no_object_is_exported() {
    everywhere("no_object_is_exported", |info| {
        let each = EachObject::open(info);
        for object in each.all() {
            for flags in [0].into_iter().chain(FLAGS) {
                let mut exported = object;
                let mut request = fi_fid_export {
                    fid: &raw mut exported,
                    flags,
                    context: null_mut(),
                };
                let request = (&raw mut request).cast();
                assert_eq!(control(object, FI_EXPORT_FID, request), -FI_ENOSYS);
                assert_eq!(exported, object, "nothing is written");
            }
        }
        each.close();
    });
}

/// An object that another provider or libfabric itself has, of any class: no more of it is read
/// than its `fid`, and nothing is kept.
///
/// Covers: PEER-12
#[test]
fn objects_of_others_are_not_imported() {
    alone("objects_of_others_are_not_imported", |info| {
        let each = EachObject::open(info);
        let edge = GuardedPage::new();
        // Its functions are nobody's.
        let mut ops = fi_ops::default();
        for class in (0..40).chain([1 << 20, usize::MAX]) {
            let other = edge.whole(&fid {
                fclass: class,
                context: null_mut(),
                ops: &raw mut ops,
            });
            for to in each.all() {
                // SAFETY: the object is open.
                let expected = match unsafe { (*to).fclass } {
                    FI_CLASS_AV if class < FI_CLASS_MR_CACHE => -FI_EINVAL,
                    _ => -FI_ENOSYS,
                };
                for flags in [0].into_iter().chain(FLAGS) {
                    let what = format!("class {class} with {flags:#x}");
                    assert_eq!(import(to, other, flags), expected, "{what}");
                }
            }
            let mut list = [other];
            let fabric = each.opened.fabric;
            // SAFETY: the fabric and the list are there.
            let tried = unsafe { call!(fabric, ops.trywait(list.as_mut_ptr(), 1)) };
            assert_eq!(tried, -FI_EINVAL);
        }
        each.close();
    });
}

/// The object of an owner itself is not what the call with `FI_PEER` has returned.
///
/// Covers: PEER-12
#[test]
fn the_owners_own_objects_are_not_imported() {
    alone("the_owners_own_objects_are_not_imported", |info| {
        let mut each = EachObject::open(info);
        let (ep, mut ops) = (each.disabled.cast::<fid>(), fi_ops::default());
        let own = &mut each.imported.receives.peer.ep_fid.fid;
        (own.fclass, own.ops) = (FI_CLASS_SRX_CTX, &raw mut ops);
        assert_eq!(import(ep, own, 0), -FI_ENOSYS);
        let mut cq = owner_fid(FI_CLASS_PEER_CQ, &mut ops);
        assert_eq!(import(ep, &raw mut cq, FI_RECV), -FI_ENOSYS);
        let mut monitor = owner_fid(FI_CLASS_MEM_MONITOR, &mut ops);
        assert_eq!(
            import(each.opened.domain.cast(), &raw mut monitor, 0),
            -FI_ENOSYS
        );
        each.close();
    });
}

fn owner_fid(fclass: usize, ops: &mut fi_ops) -> fid {
    fid {
        fclass,
        context: null_mut(),
        ops,
    }
}

/// An object of this provider is imported as it is bound: once, and without unknown flags.
///
/// Covers: PEER-12
#[test]
fn own_objects_are_bound() {
    everywhere("own_objects_are_bound", |info| {
        let each = EachObject::open(info);
        let srx: *mut fid = each.imported.srx.cast();
        let (disabled, enabled) = (each.disabled.cast::<fid>(), each.side.ep.cast::<fid>());
        assert_eq!(import(disabled, null_mut(), 0), -FI_EINVAL);
        for object in [srx, each.side.av.cast(), each.opened.eq.cast()] {
            for flags in FLAGS {
                assert_eq!(import(disabled, object, flags), -FI_EBADFLAGS);
            }
            assert_eq!(import(enabled, object, 0), -FI_EOPBADSTATE);
        }
        assert_eq!(import(disabled, srx, 0), 0);
        assert_eq!(import(disabled, srx, 0), -FI_EINVAL);
        for class in [FI_CLASS_EP, FI_CLASS_MR] {
            let objects = each.all();
            let of_class = objects.iter().find(|object| {
                // SAFETY: the objects are open.
                let its = unsafe { (***object).fclass };
                its == class
            });
            assert_eq!(import(disabled, *of_class.unwrap(), 0), -FI_ENOSYS);
        }
        let (av, eq): (*mut fid, *mut fid) = (each.side.av.cast(), each.opened.eq.cast());
        assert_eq!(import(av, each.side.rx.cast(), 0), -FI_EINVAL);
        assert_eq!(import(av, eq, 1), -FI_EINVAL);
        assert_eq!(import(av, eq, 0), 0);
        // SAFETY: both are open.
        let classes = unsafe { [(*eq).fclass, (*each.side.rx.cast::<fid>()).fclass] };
        assert_eq!(classes, [FI_CLASS_EQ, FI_CLASS_CQ]);
        each.close();
    });
}
