//! The form of text addresses (fi_getinfo(3), `FI_ADDR_STR`):
//! `address_format[://[node][:[service][/[field3]...][?[key=value][&k2=v2]...]]]`.

use super::error::AddrError;

/// A text address in its parts, none of which is looked into. `None` and empty are different
/// nowhere.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct Uri<'a> {
    /// The format's name.
    pub scheme: &'a str,
    /// Host, without the brackets of an IPv6 address.
    pub node: &'a str,
    /// The text behind the host's colon.
    pub service: &'a str,
    /// The texts between slashes.
    pub fields: Vec<&'a str>,
    /// Keys with their values, each key once.
    pub keys: Vec<(&'a str, &'a str)>,
}

impl<'a> Uri<'a> {
    /// Takes text apart.
    ///
    /// # Errors
    ///
    /// The part that is not as it should be.
    pub fn parse(text: &'a str) -> Result<Self, AddrError> {
        let (scheme, rest) = text.split_once("://").unwrap_or((text, ""));
        let named = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '+' | '-' | '.');
        if scheme.is_empty() || !scheme.chars().all(named) {
            return Err(AddrError::Field("address format"));
        }
        let (path, query) = rest.split_once('?').unwrap_or((rest, ""));
        let mut parts = path.split('/');
        let (node, service) = host_and_service(parts.next().unwrap_or_default())?;
        if node.contains(['[', ']']) {
            return Err(AddrError::Field("bracket"));
        }
        let mut keys: Vec<(&str, &str)> = Vec::new();
        for pair in query.split('&').filter(|pair| !pair.is_empty()) {
            let (key, value) = pair.split_once('=').ok_or(AddrError::Field("key=value"))?;
            if key.is_empty() || keys.iter().any(|(known, _)| *known == key) {
                return Err(AddrError::Field("key (each once)"));
            }
            keys.push((key, value));
        }
        Ok(Self {
            scheme,
            node,
            service,
            fields: parts.collect(),
            keys,
        })
    }

    /// Whether text looks like an address of this form, not like a host's name.
    pub fn is_one(text: &str) -> bool {
        text.contains("://")
    }

    /// The value of a key, which is not there any more afterwards.
    pub(super) fn take(&mut self, key: &str) -> Option<&'a str> {
        let at = self.keys.iter().position(|(known, _)| *known == key)?;
        Some(self.keys.remove(at).1)
    }
}

/// `host:service`, `[host]:service`; an IPv6 address without brackets needs its service.
fn host_and_service(text: &str) -> Result<(&str, &str), AddrError> {
    if let Some(rest) = text.strip_prefix('[') {
        let (host, rest) = rest.split_once(']').ok_or(AddrError::Field("bracket"))?;
        return match (rest, rest.strip_prefix(':')) {
            ("", _) => Ok((host, "")),
            (_, Some(service)) => Ok((host, service)),
            _ => Err(AddrError::Field("service after the bracket")),
        };
    }
    Ok(text.rsplit_once(':').unwrap_or((text, "")))
}

/// A number in base 16, with or without `0x`.
pub(super) fn base_16(text: &str, name: &'static str) -> Result<u64, AddrError> {
    let digits = text.strip_prefix("0x").unwrap_or(text);
    // The parser of the standard library takes a sign, too.
    match digits.starts_with(['+', '-']) {
        true => Err(AddrError::Field(name)),
        false => u64::from_str_radix(digits, 16).map_err(|_| AddrError::Field(name)),
    }
}

pub(super) fn narrow<T: TryFrom<u64>>(value: u64, name: &'static str) -> Result<T, AddrError> {
    T::try_from(value).map_err(|_| AddrError::Field(name))
}

impl std::fmt::Display for Uri<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}://", self.scheme)?;
        // A bracket separates a node with colons from its service.
        match self.node.contains(':') || self.service.contains(':') {
            true => write!(f, "[{}]", self.node)?,
            false => f.write_str(self.node)?,
        }
        if !self.service.is_empty() {
            write!(f, ":{}", self.service)?;
        }
        for field in &self.fields {
            write!(f, "/{field}")?;
        }
        for (i, (key, value)) in self.keys.iter().enumerate() {
            write!(f, "{}{key}={value}", if i == 0 { '?' } else { '&' })?;
        }
        Ok(())
    }
}
