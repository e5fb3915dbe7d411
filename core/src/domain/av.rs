//! Address vector objects (fi_av(3)).

use std::sync::Arc;

use super::{Backend, Inner, Object};
use crate::addr::NativeAddr;
use crate::av::{AvAttr, AvTable};
use crate::error::{Errno, Error, Result};
use crate::fabric::{Av, ObjectId};
use crate::peer::PeerAv;
use crate::types::FiAddr;

struct AvHandle<B: Backend> {
    domain: Arc<Inner<B>>,
    index: usize,
}

pub(super) fn open<B: Backend>(domain: &Arc<Inner<B>>, attr: &AvAttr) -> Result<Arc<dyn Av>> {
    let table = AvTable::new(attr)?;
    let index = domain.lock_to("open", "address vector")?.avs.insert(table);
    Ok(Arc::new(AvHandle {
        domain: domain.clone(),
        index,
    }))
}

impl<B: Backend> Av for AvHandle<B> {
    fn insert(&self, name: &[u8]) -> Result<FiAddr> {
        let mut guard = self.domain.lock_to("insert into", "address vector")?;
        let state = &mut *guard;
        let (addr, new) = state.avs[self.index].insert(name)?;
        if new {
            let native = state.avs[self.index].lookup(addr);
            for (_, endpoint) in &mut state.endpoints {
                if endpoint.binding.av == self.index {
                    let (transport, mut owner) =
                        endpoint.split(&mut state.cqs, &mut state.cntrs, &state.avs);
                    if let Some(native) = &native {
                        crate::peer::Transport::peer_inserted(transport, addr, native, &mut owner);
                    }
                    owner.start_deferred(transport);
                }
            }
            self.domain.wake(state);
        }
        Ok(addr)
    }

    fn remove(&self, addr: FiAddr) -> Result<()> {
        let mut guard = self.domain.lock_to("remove from", "address vector")?;
        let state = &mut *guard;
        state.avs[self.index].remove(addr)?;
        for (_, endpoint) in &mut state.endpoints {
            if endpoint.binding.av == self.index {
                let (transport, mut owner) =
                    endpoint.split(&mut state.cqs, &mut state.cntrs, &state.avs);
                crate::peer::Transport::peer_removed(transport, addr, &mut owner);
                owner.start_deferred(transport);
            }
        }
        self.domain.wake(state);
        Ok(())
    }

    fn lookup(&self, addr: FiAddr) -> Result<NativeAddr> {
        self.domain.lock_to("look up in", "address vector")?.avs[self.index]
            .lookup(addr)
            .ok_or_else(|| {
                Error::new(Errno::EINVAL, "look up", format!("{addr:?}"))
                    .mend("it is not in this address vector")
            })
    }

    fn id(&self) -> ObjectId {
        ObjectId {
            domain: self.domain.id(),
            index: self.index,
        }
    }
}

impl<B: Backend> Drop for AvHandle<B> {
    fn drop(&mut self) {
        self.domain.close(Object::Av(self.index));
    }
}
