//! Ranges of socket addresses as they were inserted: nodes and ports, in place of an address for
//! each entry (`docs/adr/0036`).
//!
//! The addresses of a range have positions, all ports of a node before the next node. A span is as
//! many entries in a row as have positions in a row: one for a range that was put in an empty
//! table, more where entries between were taken, addresses were in already, or some were removed.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr, SocketAddrV6};

use slab::Slab;

/// A node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct RangeHost {
    ip: IpAddr,
    /// Of a link-local address: the interface.
    scope: u32,
}

impl RangeHost {
    pub(super) fn of(at: &SocketAddr) -> Self {
        Self {
            ip: at.ip(),
            scope: match at {
                SocketAddr::V4(_) => 0,
                SocketAddr::V6(at) => at.scope_id(),
            },
        }
    }

    pub(super) fn at(self, port: u16) -> SocketAddr {
        match self.ip {
            IpAddr::V4(ip) => (ip, port).into(),
            IpAddr::V6(ip) => SocketAddrV6::new(ip, port, 0, self.scope).into(),
        }
    }
}

/// One range; a node that nobody knows has no host, and no entries.
struct Range {
    hosts: Box<[Option<RangeHost>]>,
    first_port: u16,
    ports: usize,
    /// Entries that it still has.
    entries: usize,
}

impl Range {
    fn socket(&self, position: u64) -> Option<SocketAddr> {
        let ports = self.ports as u64;
        let host = *self.hosts.get((position / ports) as usize)?;
        Some(host?.at(self.first_port + (position % ports) as u16))
    }

    fn position(&self, node: u32, port: u16) -> Option<u64> {
        let port = usize::from(port.checked_sub(self.first_port)?);
        (port < self.ports).then(|| u64::from(node) * self.ports as u64 + port as u64)
    }
}

/// Entries in a row, of one range.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Span {
    range: u32,
    position: u64,
    len: u32,
}

/// All ranges of a table.
#[derive(Default)]
pub(super) struct Ranges {
    ranges: Slab<Range>,
    /// By the first entry of each.
    spans: BTreeMap<u32, Span>,
    /// Their first entries, by range and position.
    firsts: BTreeMap<(u32, u64), u32>,
    /// The nodes of all ranges.
    nodes: BTreeMap<(RangeHost, u32), u32>,
}

impl Ranges {
    /// A new range, which has no entries yet.
    pub(super) fn begin(
        &mut self,
        hosts: Box<[Option<RangeHost>]>,
        first_port: u16,
        ports: usize,
    ) -> u32 {
        let vacant = self.ranges.vacant_entry();
        let range = vacant.key() as u32;
        for (node, host) in (0..).zip(&hosts) {
            if let Some(host) = host {
                // Names may stand for the same node: its second insertion finds the first.
                self.nodes.entry((*host, range)).or_insert(node);
            }
        }
        vacant.insert(Range {
            hosts,
            first_port,
            ports,
            entries: 0,
        });
        range
    }

    /// Whether only this range has a node, and has it once.
    pub(super) fn is_fresh(&self, host: RangeHost, range: u32, node: u32) -> bool {
        let mut known = self.nodes.range((host, 0)..=(host, u32::MAX));
        known.all(|((_, other), as_node)| *other == range && *as_node == node)
    }

    /// Gives an entry to the address at a position. Positions come in order.
    pub(super) fn put(&mut self, range: u32, entry: u32, position: u64) {
        self.ranges[range as usize].entries += 1;
        if let Some((first, span)) = self.spans.range_mut(..entry).next_back() {
            let ahead = u64::from(entry - first);
            if span.range == range
                && ahead == u64::from(span.len)
                && position == span.position + ahead
            {
                span.len += 1;
                return;
            }
        }
        let span = Span {
            range,
            position,
            len: 1,
        };
        self.add(entry, span);
    }

    /// The range is complete. One without entries is dropped.
    pub(super) fn end(&mut self, range: u32) {
        if self.ranges[range as usize].entries == 0 {
            self.forget(range);
        }
    }

    fn add(&mut self, first: u32, span: Span) {
        self.spans.insert(first, span);
        self.firsts.insert((span.range, span.position), first);
    }

    fn forget(&mut self, range: u32) {
        let gone = self.ranges.remove(range as usize);
        for host in gone.hosts.iter().flatten() {
            self.nodes.remove(&(*host, range));
        }
    }

    fn span(&self, entry: u32) -> Option<(u32, Span)> {
        let (first, span) = self.spans.range(..=entry).next_back()?;
        (entry - first < span.len).then_some((*first, *span))
    }

    /// The socket address of an entry, if it is one of a range.
    pub(super) fn socket(&self, entry: u32) -> Option<SocketAddr> {
        let (first, span) = self.span(entry)?;
        let range = self.ranges.get(span.range as usize)?;
        range.socket(span.position + u64::from(entry - first))
    }

    /// The entry of a socket address, if a range has it.
    pub(super) fn entry(&self, at: &SocketAddr) -> Option<u32> {
        let host = RangeHost::of(at);
        let mut nodes = self.nodes.range((host, 0)..=(host, u32::MAX));
        nodes.find_map(|((_, range), node)| {
            let position = self
                .ranges
                .get(*range as usize)?
                .position(*node, at.port())?;
            let (place, first) = self
                .firsts
                .range((*range, 0)..=(*range, position))
                .next_back()?;
            let ahead = position - place.1;
            let within = ahead < self.spans.get(first)?.len.into();
            within.then(|| first + ahead as u32)
        })
    }

    /// Takes an entry out of its range.
    pub(super) fn remove(&mut self, entry: u32) {
        let Some((first, span)) = self.span(entry) else {
            return;
        };
        self.spans.remove(&first);
        self.firsts.remove(&(span.range, span.position));
        let before = entry - first;
        let after = span.len - before - 1;
        if before != 0 {
            self.add(
                first,
                Span {
                    len: before,
                    ..span
                },
            );
        }
        if after != 0 {
            let rest = Span {
                position: span.position + u64::from(before) + 1,
                len: after,
                ..span
            };
            self.add(entry + 1, rest);
        }
        let range = &mut self.ranges[span.range as usize];
        range.entries -= 1;
        if range.entries == 0 {
            self.forget(span.range);
        }
    }

    /// Number of ranges that have entries.
    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.ranges.len()
    }

    /// Whether all maps say the same.
    #[cfg(test)]
    pub(super) fn is_tidy(&self) -> bool {
        let mut free_from = 0;
        let in_a_row = self.spans.iter().all(|(first, span)| {
            let apart = *first >= free_from && span.len != 0;
            free_from = first + span.len;
            apart && self.firsts.get(&(span.range, span.position)) == Some(first)
        });
        let entries = |id| -> usize {
            let spans = self.spans.values().filter(|span| span.range as usize == id);
            spans.map(|span| span.len as usize).sum()
        };
        let ranges =
            |(id, range): (usize, &Range)| range.entries != 0 && range.entries == entries(id);
        let nodes = |(_, range): &(RangeHost, u32)| self.ranges.contains(*range as usize);
        in_a_row
            && self.firsts.len() == self.spans.len()
            && self.ranges.iter().all(ranges)
            && self.nodes.keys().all(nodes)
    }
}
