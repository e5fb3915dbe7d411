//! The verbs provider of Ferrofabric: RDM and DGRAM endpoints over InfiniBand, RoCE and Soft-RoCE.

pub mod ah;
pub mod cq;
pub mod device;
pub mod mr;
pub mod pd;
pub mod post;
pub mod qp;
pub mod srq;
