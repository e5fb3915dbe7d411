//! Tests of Ferrofabric on a real verbs device.
