//! The verbs provider of Ferrofabric: RDM and DGRAM endpoints over InfiniBand, RoCE and Soft-RoCE.
