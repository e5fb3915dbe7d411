//! Ports.

use std::fmt;

use ferrofabric_verbs_sys::{
    IBV_LINK_LAYER_ETHERNET, IBV_LINK_LAYER_INFINIBAND, ibv_mtu, ibv_port_attr, ibv_port_state,
};

/// A port's attributes (`ibv_query_port(3)`).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PortAttributes {
    /// From 1 on.
    pub number: u8,
    /// Whether it carries traffic.
    pub state: PortState,
    /// InfiniBand or Ethernet.
    pub link_layer: LinkLayer,
    /// Largest path MTU of the hardware.
    pub max_mtu: Mtu,
    /// Largest path MTU now.
    pub active_mtu: Mtu,
    /// Local identifier, given by the subnet manager; 0 on Ethernet.
    pub lid: u16,
    /// Each packet needs a routing header, also within a subnet.
    pub grh_required: bool,
    /// How many low bits of the LID select a path.
    pub lid_mask_bits: u8,
    /// The subnet manager's LID; 0 on Ethernet.
    pub sm_lid: u16,
    /// Longest message, in bytes.
    pub message_bytes: u32,
    /// Slots of the GID table, used or not.
    pub gid_slots: u32,
    /// Slots of the P_Key table.
    pub pkey_slots: u16,
    /// Rate of the link in Mbit/s, when the device gives one that is known.
    pub speed_mbps: Option<u64>,
    /// Lanes of the link, over which the rate is spread, when the number is known.
    pub link_width: Option<u8>,
    /// The state of the link's physical layer.
    pub physical: PhysicalState,
}

/// Flag of a port: `IBV_QPF_GRH_REQUIRED`.
const GRH_REQUIRED: u8 = 1;

impl PortAttributes {
    pub(super) fn from_raw(number: u8, raw: &ibv_port_attr) -> Self {
        let speed = match raw.active_speed_ex {
            0 => u32::from(raw.active_speed),
            wide => wide,
        };
        Self {
            number,
            state: PortState::from_raw(raw.state),
            link_layer: LinkLayer::from_raw(raw.link_layer),
            max_mtu: Mtu::from_raw(raw.max_mtu),
            active_mtu: Mtu::from_raw(raw.active_mtu),
            lid: raw.lid,
            grh_required: raw.flags & GRH_REQUIRED != 0,
            lid_mask_bits: raw.lmc,
            sm_lid: raw.sm_lid,
            message_bytes: raw.max_msg_sz,
            gid_slots: u32::try_from(raw.gid_tbl_len).unwrap_or(0),
            pkey_slots: raw.pkey_tbl_len,
            speed_mbps: speed_mbps(raw.active_width, speed),
            link_width: link_width(raw.active_width),
            physical: PhysicalState::from_raw(raw.phys_state),
        }
    }
}

/// The state of a port's link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PortState {
    /// No link.
    Down,
    /// A link, and no subnet manager has set it up yet.
    Initialising,
    /// Set up, not yet active.
    Armed,
    /// It carries traffic.
    Active,
    /// Active, with a passing link fault.
    ActiveDeferred,
    /// A state of another number.
    Other(u32),
}

impl PortState {
    fn from_raw(raw: ibv_port_state) -> Self {
        match raw {
            ibv_port_state::IBV_PORT_DOWN => Self::Down,
            ibv_port_state::IBV_PORT_INIT => Self::Initialising,
            ibv_port_state::IBV_PORT_ARMED => Self::Armed,
            ibv_port_state::IBV_PORT_ACTIVE => Self::Active,
            ibv_port_state::IBV_PORT_ACTIVE_DEFER => Self::ActiveDeferred,
            other => Self::Other(other.0),
        }
    }

    /// Whether it carries traffic.
    pub fn is_usable(self) -> bool {
        matches!(self, Self::Active | Self::ActiveDeferred)
    }
}

impl fmt::Display for PortState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Down => f.write_str("down"),
            Self::Initialising => f.write_str("init"),
            Self::Armed => f.write_str("armed"),
            Self::Active => f.write_str("active"),
            Self::ActiveDeferred => f.write_str("active deferred"),
            Self::Other(number) => write!(f, "state {number}"),
        }
    }
}

/// The state of the physical layer of a port's link (IBTA 1.5 §14.2.5.6, PortPhysicalState).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PhysicalState {
    /// The link sleeps.
    Sleep,
    /// The port looks for a link.
    Polling,
    /// The port is switched off.
    Disabled,
    /// Both ends adjust to each other.
    Training,
    /// The link is up.
    LinkUp,
    /// The link recovers from errors.
    ErrorRecovery,
    /// The link is under test.
    Test,
    /// A state of another number; 0 where the device does not say.
    Other(u8),
}

impl PhysicalState {
    fn from_raw(raw: u8) -> Self {
        match raw {
            1 => Self::Sleep,
            2 => Self::Polling,
            3 => Self::Disabled,
            4 => Self::Training,
            5 => Self::LinkUp,
            6 => Self::ErrorRecovery,
            7 => Self::Test,
            other => Self::Other(other),
        }
    }
}

impl fmt::Display for PhysicalState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Sleep => "sleep",
            Self::Polling => "polling",
            Self::Disabled => "disabled",
            Self::Training => "training",
            Self::LinkUp => "link up",
            Self::ErrorRecovery => "error recovery",
            Self::Test => "test",
            Self::Other(0) => "unknown",
            Self::Other(number) => return write!(f, "state {number}"),
        })
    }
}

/// The link layer of a port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LinkLayer {
    /// InfiniBand: LIDs and a subnet manager. Devices that do not say (older ones) are InfiniBand.
    InfiniBand,
    /// Ethernet: RoCE.
    Ethernet,
    /// Another number.
    Other(u8),
}

impl LinkLayer {
    fn from_raw(raw: u8) -> Self {
        match u32::from(raw) {
            0 | IBV_LINK_LAYER_INFINIBAND => Self::InfiniBand,
            IBV_LINK_LAYER_ETHERNET => Self::Ethernet,
            _ => Self::Other(raw),
        }
    }
}

impl fmt::Display for LinkLayer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::InfiniBand => f.write_str("InfiniBand"),
            Self::Ethernet => f.write_str("Ethernet"),
            Self::Other(number) => write!(f, "link layer {number}"),
        }
    }
}

/// A path MTU.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub enum Mtu {
    /// 256 bytes.
    B256 = 1,
    /// 512 bytes.
    B512 = 2,
    /// 1024 bytes.
    B1024 = 3,
    /// 2048 bytes.
    B2048 = 4,
    /// 4096 bytes.
    B4096 = 5,
}

impl Mtu {
    const ALL: [Self; 5] = [
        Self::B256,
        Self::B512,
        Self::B1024,
        Self::B2048,
        Self::B4096,
    ];

    /// Payload of one packet, in bytes.
    pub fn bytes(self) -> usize {
        128 << self as u8
    }

    /// As the device encodes it: 1 (256 bytes) to 5 (4096).
    pub fn code(self) -> u8 {
        self as u8
    }

    /// The MTU of a code.
    pub fn from_code(code: u8) -> Option<Self> {
        Self::ALL.into_iter().find(|mtu| mtu.code() == code)
    }

    /// The largest path MTU of at most `bytes`; `None` below 256.
    pub fn at_most(bytes: usize) -> Option<Self> {
        Self::ALL.into_iter().rev().find(|mtu| mtu.bytes() <= bytes)
    }

    /// The MTU of a number in messages and attributes; an unknown number becomes the nearest known
    /// one.
    pub(super) fn from_raw(raw: ibv_mtu) -> Self {
        Self::ALL[(raw.0.clamp(1, 5) - 1) as usize]
    }

    pub(crate) fn to_raw(self) -> ibv_mtu {
        ibv_mtu(u32::from(self as u8))
    }
}

impl fmt::Display for Mtu {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.bytes())
    }
}

/// Lanes by the code of a width.
fn link_width(code: u8) -> Option<u8> {
    Some(match code {
        1 => 1,
        2 => 4,
        4 => 8,
        8 => 12,
        16 => 2,
        _ => return None,
    })
}

/// Lanes times lane rate (IBTA 1.5 §14.2.5.6, PortInfo).
fn speed_mbps(width: u8, speed: u32) -> Option<u64> {
    let lanes = link_width(width)?;
    let lane = match speed {
        1 => 2_500,
        2 => 5_000,
        4 | 8 => 10_000,
        16 => 14_000,
        32 => 25_000,
        64 => 50_000,
        128 => 100_000,
        256 => 200_000,
        _ => return None,
    };
    Some(u64::from(lanes) * lane)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_mtu_of_an_interface_is_rounded_down() {
        assert_eq!(Mtu::at_most(4200), Some(Mtu::B4096));
        assert_eq!(Mtu::at_most(1500), Some(Mtu::B1024));
        assert_eq!(Mtu::at_most(255), None);
        assert_eq!(Mtu::B4096.bytes(), 4096);
        assert_eq!(Mtu::from_code(Mtu::B2048.code()), Some(Mtu::B2048));
        assert_eq!((Mtu::from_code(0), Mtu::from_code(6)), (None, None));
    }

    #[test]
    fn a_number_from_a_broken_device_is_cut_to_what_exists() {
        assert_eq!(Mtu::from_raw(ibv_mtu(0)), Mtu::B256);
        assert_eq!(Mtu::from_raw(ibv_mtu(77)), Mtu::B4096);
        assert_eq!(PortState::from_raw(ibv_port_state(9)), PortState::Other(9));
        assert_eq!(LinkLayer::from_raw(9), LinkLayer::Other(9));
        assert_eq!(PhysicalState::from_raw(5), PhysicalState::LinkUp);
        assert_eq!(PhysicalState::from_raw(9), PhysicalState::Other(9));
    }

    #[test]
    fn rates_are_lanes_times_lane_rate() {
        assert_eq!(speed_mbps(2, 32), Some(100_000));
        assert_eq!(speed_mbps(2, 128), Some(400_000));
        assert_eq!(speed_mbps(3, 32), None);
        assert_eq!(speed_mbps(2, 3), None);
    }
}
