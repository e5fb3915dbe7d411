//! Tables whose calls all return `-FI_ENOSYS`: for operations that an object does not offer.

use crate::abi::{
    Roomy, fi_ops, fi_ops_atomic, fi_ops_cm, fi_ops_collective, fi_ops_ep, fi_ops_mr, fi_ops_msg,
    fi_ops_rma, fi_ops_tagged,
};
use crate::unsupported::Unsupported;

/// Makes such tables: a name, libfabric's structure, and all its calls.
macro_rules! no_calls {
    ($($NAME:ident: $Ops:ident, $($call:ident)*;)*) => {
        $(
            pub(crate) static $NAME: Roomy<$Ops> = Roomy::new($Ops {
                size: size_of::<$Ops>(),
                $($call: Some(Unsupported::ENOSYS),)*
            });
        )*
    };
}

no_calls! {
    FID: fi_ops, close bind control ops_open tostr ops_set;
    EP: fi_ops_ep, cancel getopt setopt tx_ctx rx_ctx rx_size_left tx_size_left;
    CM: fi_ops_cm, setname getname getpeer connect listen accept reject shutdown join;
    MR: fi_ops_mr, reg regv regattr;
    MSG: fi_ops_msg, recv recvv recvmsg send sendv sendmsg inject senddata injectdata;
    TAGGED: fi_ops_tagged, recv recvv recvmsg send sendv sendmsg inject senddata injectdata;
    RMA: fi_ops_rma, read readv readmsg write writev writemsg inject writedata injectdata;
    ATOMIC: fi_ops_atomic,
        write writev writemsg inject
        readwrite readwritev readwritemsg
        compwrite compwritev compwritemsg
        writevalid readwritevalid compwritevalid;
    COLLECTIVE: fi_ops_collective,
        barrier broadcast alltoall allreduce allgather reduce_scatter reduce scatter gather msg
        barrier2;
}
