//! Whether a lane may send.

/// The one place that says what a lane may send.
///
/// ```text
///                    the peer's end is up, and
///                    nothing has to be sent again
///        Shut ◄─────────────────────────────────► Open
///          │                                        │
///          └───────────────► Ending ◄───────────────┘
/// ```
#[derive(Debug)]
pub(crate) struct SendGate {
    /// The peer's end is up: it takes packets.
    peer_is_up: bool,
    stage: Stage,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    /// At most packets that are sent again, and what they wait for.
    Shut,
    /// Everything.
    Open,
    /// Nothing any more: the lane closes.
    Ending,
}

impl SendGate {
    pub(super) fn new(peer_is_up: bool) -> Self {
        Self {
            peer_is_up,
            stage: Stage::Shut,
        }
    }

    /// Whether new messages may be sent.
    #[inline]
    pub(crate) fn is_open(&self) -> bool {
        self.stage == Stage::Open
    }

    /// Whether anything may be sent.
    #[inline]
    pub(crate) fn is_usable(&self) -> bool {
        self.peer_is_up && !self.is_ending()
    }

    /// Whether the peer's end is up.
    #[inline]
    pub(crate) fn peer_is_up(&self) -> bool {
        self.peer_is_up
    }

    /// Whether the lane closes.
    #[inline]
    pub(crate) fn is_ending(&self) -> bool {
        self.stage == Stage::Ending
    }

    /// The peer's end is up. Returns false if that was so before.
    pub(super) fn peer_came_up(&mut self) -> bool {
        !std::mem::replace(&mut self.peer_is_up, true)
    }

    /// Decides whether new messages may be sent; `catches_up`: some packets have to be sent again
    /// before.
    pub(crate) fn reconsider(&mut self, catches_up: bool) {
        if !self.is_ending() {
            self.stage = match self.peer_is_up && !catches_up {
                true => Stage::Open,
                false => Stage::Shut,
            };
        }
    }

    /// The lane closes: it sends nothing more.
    pub(crate) fn end(&mut self) {
        self.stage = Stage::Ending;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Each step of the drawing, and none out of the end.
    #[test]
    fn a_gate_opens_for_a_peer_that_is_up_and_never_after_its_end() {
        let mut gate = SendGate::new(false);
        gate.reconsider(false);
        assert!(!gate.is_open() && !gate.is_usable());
        assert!(gate.peer_came_up());
        gate.reconsider(true);
        assert!(!gate.is_open() && gate.is_usable(), "it catches up");
        gate.reconsider(false);
        assert!(gate.is_open() && !gate.peer_came_up());
        gate.end();
        gate.reconsider(false);
        assert!(!gate.is_open() && !gate.is_usable() && gate.peer_is_up());
        let mut unheard = SendGate::new(false);
        unheard.end();
        assert!(unheard.peer_came_up(), "its peer is found by a late packet");
        assert!(unheard.is_ending() && !unheard.is_usable());
    }
}
