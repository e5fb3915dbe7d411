//! The providers of this build, best first, and the domain of a measurement.

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
    Path::Auto.providers()
}

/// The transport of the messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Path {
    /// The best one between the two sides.
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

    /// The providers of this path. The others stay out of a search, so that its error does not name
    /// a setting that [`settings`](Self::settings) has switched off.
    fn providers(self) -> Vec<Box<dyn Provider>> {
        let mut providers: Vec<Box<dyn Provider>> = Vec::new();
        if self != Self::Shm {
            providers.push(Box::new(VerbsProvider::new()));
        }
        if self != Self::Verbs {
            providers.push(Box::new(ShmProvider::new()));
        }
        providers
    }

    /// Opens the best domain that reaches peers this way, for threads that call as the level says.
    ///
    /// # Errors
    ///
    /// When there is none: the field that rules each candidate out, and the missing parts of the
    /// machine.
    pub(crate) fn open(self, threading: Threading) -> Result<Arc<dyn Domain>> {
        self.open_with(DomainAttr {
            threading,
            ..DomainAttr::default()
        })
    }

    /// As [`open`](Self::open), of the domains with these attributes.
    ///
    /// # Errors
    ///
    /// As there.
    pub(crate) fn open_with(self, domain: DomainAttr) -> Result<Arc<dyn Domain>> {
        let settings = self.settings()?;
        let hints = Info {
            caps: Flags::TAGGED | Flags::DIRECTED_RECV,
            ep: EpAttr {
                ep_type: EpType::Rdm,
                ..EpAttr::default()
            },
            domain,
            ..Info::default()
        };
        let providers = self.providers();
        let borrowed: Vec<&dyn Provider> = providers.iter().map(AsRef::as_ref).collect();
        // All of them together first: the error then names the lack of each.
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
