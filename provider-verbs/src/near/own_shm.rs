//! Ferrofabric's shared memory as the near transport.

use std::sync::Arc;

use ferrofabric_contracts::addr::NativeAddr;
use ferrofabric_contracts::config::Settings;
use ferrofabric_contracts::error::{Error, Result};
use ferrofabric_contracts::flags::Flags;
use ferrofabric_contracts::info::Info;
use ferrofabric_contracts::peer::HandsBack;
use ferrofabric_runtime::domain::Opening;
use ferrofabric_runtime::fabric::MrAttr;
use ferrofabric_shm::{Cma, RegionBoard, ShmConfig, ShmTransport, ShownRegions, Unreachable};

use super::{NearDomain, with_near_transport};

/// Ferrofabric's shared memory, unless setting `shm` switches it off, or the application wants
/// remote peers alone.
pub struct OwnShm {
    has_transports: bool,
    config: ShmConfig,
    /// The regions that the processes of this node reach by themselves.
    board: Arc<RegionBoard>,
}

impl NearDomain for OwnShm {
    type Transport = ShmTransport;
    const OWN_SHM_WITH_KEYS: bool = true;

    fn open(info: &Info, settings: &Settings) -> Result<Self> {
        let config = ShmConfig {
            unreachable: Unreachable::HandBack,
            ..ShmConfig::from_settings(settings)
        };
        Ok(Self {
            // An application that wants remote peers alone gets no peer through shared memory
            // (fi_getinfo(3), FI_REMOTE_COMM).
            has_transports: settings.shm && info.caps.contains(Flags::LOCAL_COMM),
            board: RegionBoard::new(config.cma != Cma::Off),
            config,
        })
    }

    fn offers(all: Info, settings: &Settings, _notices: &mut Vec<Error>) -> Vec<Info> {
        match settings.shm {
            true => vec![with_near_transport(all)],
            false => vec![all],
        }
    }

    fn open_endpoint(
        &self,
        opening: &Opening<'_>,
        name: &NativeAddr,
    ) -> Result<Option<ShmTransport>> {
        if !self.has_transports {
            return Ok(None);
        }
        let config = ShmConfig {
            shown: Some(ShownRegions {
                board: self.board.clone(),
                rights: opening.unseen_rights,
            }),
            ..self.config.clone()
        };
        let transport = ShmTransport::open_named(config, *name, ShmTransport::TRANSPORT)?;
        opening.wait.add(transport.wait_fd())?;
        Ok(Some(transport))
    }

    fn show_region(&self, number: usize, key: u64, attr: &MrAttr<'_>) {
        self.board.show(number, key, attr);
    }

    fn hide_region(&self, number: usize) {
        self.board.hide(number);
    }

    fn is_region_in_use(&self, number: usize) -> bool {
        self.board.is_in_use(number)
    }
}
