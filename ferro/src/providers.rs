//! Which providers there are, best first, and the domain that a measurement uses.

use std::sync::Arc;

use clap::ValueEnum;
use ferrofabric_contracts::config::Settings;
use ferrofabric_contracts::error::Errno;
use ferrofabric_contracts::flags::Flags;
use ferrofabric_contracts::info::{DomainAttr, EpAttr, EpType, Info, Threading};
use ferrofabric_runtime::discovery::getinfo;
use ferrofabric_runtime::fabric::{Domain, Provider};
use ferrofabric_shm::ShmProvider;
use ferrofabric_verbs::VerbsProvider;
use serde::{Deserialize, Serialize};

use crate::failure::{Failure, Result};

/// Every provider of this build.
pub(crate) fn providers() -> Vec<Box<dyn Provider>> {
    vec![Box::new(VerbsProvider::new()), Box::new(ShmProvider::new())]
}

/// What carries the messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Path {
    /// Whatever is best between the two sides.
    #[default]
    Auto,
    /// The RDMA device, also between processes of one node.
    Verbs,
    /// Shared memory.
    Shm,
}

impl Path {
    /// The user's settings, narrowed to this path.
    ///
    /// # Errors
    ///
    /// A setting whose value is none, or that switches the path off.
    pub(crate) fn settings(self) -> Result<Settings> {
        let mut settings = Settings::from_env()?;
        let (wanted, name) = match self {
            Self::Auto => return Ok(settings),
            Self::Verbs => (settings.verbs, "verbs"),
            Self::Shm => (settings.shm, "shm"),
        };
        if !wanted {
            return Err(Failure::new(format!(
                "--path {name}: the setting {name} is off (FERRO_{})",
                name.to_uppercase()
            )));
        }
        settings.shm = self == Self::Shm;
        settings.verbs = self == Self::Verbs;
        Ok(settings)
    }

    /// Opens the best domain that reaches peers this way, for the calling thread alone.
    ///
    /// # Errors
    ///
    /// When there is none: what rules each candidate out, and what is missing.
    pub(crate) fn open(self) -> Result<Arc<dyn Domain>> {
        self.open_for(Threading::Domain)
    }

    /// As [`open`](Self::open), for threads that call as the level says.
    ///
    /// # Errors
    ///
    /// As [`open`](Self::open).
    pub(crate) fn open_for(self, threading: Threading) -> Result<Arc<dyn Domain>> {
        let settings = self.settings()?;
        let hints = Info {
            caps: Flags::TAGGED | Flags::DIRECTED_RECV,
            ep: EpAttr {
                ep_type: EpType::Rdm,
                ..EpAttr::default()
            },
            domain: DomainAttr {
                threading,
                ..DomainAttr::default()
            },
            ..Info::default()
        };
        let providers = providers();
        let borrowed: Vec<&dyn Provider> = providers.iter().map(AsRef::as_ref).collect();
        // All are asked first, for the error that tells what each of them lacks.
        getinfo(&borrowed, Some(&hints), &settings)?;
        for provider in borrowed {
            if let Ok(found) = getinfo(&[provider], Some(&hints), &settings) {
                if let Some(best) = found.infos.first() {
                    return Ok(provider.open(best, &settings)?);
                }
            }
        }
        Err(Failure::new(Errno::ENODATA.to_string()))
    }
}
