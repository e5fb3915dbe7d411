//! The actions of an end's lanes, carried out.

use super::super::end::OlderSession;
use super::*;
use crate::handshake::LaneKey;

impl LanesWorld {
    pub(super) fn order(&mut self, at: usize, order: LaneOrder) {
        match order {
            LaneOrder::Connect { peer, kind, .. } => {
                self.pairs[peer as usize].requested[at] = Some(kind);
            }
            LaneOrder::Cancel { peer } => {
                self.pairs[peer as usize].requested[at] = None;
                self.fail_waiting(at, peer as usize);
            }
            LaneOrder::Promote { peer, lane, .. } => {
                let pair = peer as usize;
                self.pairs[pair].requested[at] = Some(LaneKind::Rc);
                self.lane(pair, place(lane))
                    .drop_at(at, EndReason::PeerReset);
            }
            LaneOrder::SessionEnded { peer, lane } => self.session_ended(at, peer as usize, lane),
            LaneOrder::ReportBroken { lane } => self.report_end(at, lane, EndReason::PeerReset),
            LaneOrder::ReportRecycled { lane } => {
                count(2);
                self.report_end(at, lane, EndReason::Recycled);
            }
            LaneOrder::ReportLeft { lane } => {
                count(3);
                self.report_end(at, lane, EndReason::Left);
                let this = self.by_key(lane).0;
                if this.kind == LaneKind::Rc {
                    this.down[at] = Some(EndReason::Left);
                }
            }
            LaneOrder::Fail { lane, .. } | LaneOrder::Stop { lane } => {
                self.by_key(lane).0.state[at] = SimLaneState::Failed;
            }
            LaneOrder::TakeAll { lane } => self.by_key(lane).0.take_all[at] = true,
            LaneOrder::Release { lane } => self.release(at, lane),
            LaneOrder::ReleasePath { .. } | LaneOrder::MoveLess { .. } | LaneOrder::Idle { .. } => {
            }
            LaneOrder::LendCredit { peer } => self.lend(at, peer, true),
            LaneOrder::ReclaimCredit { peer } => self.lend(at, peer, false),
            LaneOrder::Begin { peer, lane } => {
                let start = start(peer as usize, place(lane));
                let peer = &mut self.ends[at].peers[peer as usize];
                assert!(peer.session.is_none());
                peer.session = Some(Session::begin(self.origin, &start));
            }
            LaneOrder::SendResume {
                peer,
                lane,
                again_after,
            } => {
                let pair = peer as usize;
                let said = match &mut self.ends[at].peers[pair].session {
                    Some(session) => session.offer(),
                    None => ResumeState {
                        held: Resume::default(),
                        expected: self.origin.sequence,
                    },
                };
                self.lane(pair, place(lane)).repeats[at] = again_after.is_some();
                self.post(at, pair, place(lane), LanePacket::Resume(said));
            }
            LaneOrder::Enter { peer, lane, begins } => {
                let (pair, lane) = (peer as usize, place(lane));
                if begins.is_some() {
                    self.leave_behind(at, pair);
                }
                let peer = &mut self.ends[at].peers[pair];
                assert!(peer.on.is_none(), "the session is on a lane already");
                assert!(!peer.lent, "the session rests");
                if let Some(before) = begins {
                    assert!(peer.session.is_none());
                    let start = start(pair, lane);
                    peer.session = Some(Session::begin_after(before, self.origin, &start));
                }
                peer.on = Some(lane);
                let this = self.lane(pair, lane);
                this.carries[at] = true;
                this.handshake_knows[at] |= this.resumes;
                assert!(
                    this.may_send[at] || !this.resumes,
                    "the peer's Resume has come"
                );
                self.replay(at, pair, lane);
                self.send(at, pair);
            }
            LaneOrder::Park { peer, lane } => {
                let peer = &mut self.ends[at].peers[peer as usize];
                assert_eq!(peer.on.take(), Some(place(lane)));
                self.release(at, lane);
            }
        }
    }

    pub(super) fn settlement(&mut self, at: usize, settlement: Settlement) {
        match settlement {
            Settlement::FailWaiting { peer, .. } => self.fail_waiting(at, peer as usize),
            Settlement::Meet {
                peer,
                lane,
                received,
            } => {
                self.meet(at, peer as usize, place(lane), received);
            }
            Settlement::EndCarried { peer, lane, .. } => {
                self.release(at, lane);
                let peers = &mut self.ends[at].peers[peer as usize];
                let is_this = |older: &OlderSession| older.lane == place(lane);
                match peers.older.iter().position(is_this) {
                    Some(older) => self.lost += peers.older.remove(older).kept.len() as u64,
                    None => {
                        assert_eq!(peers.on.take(), Some(place(lane)));
                        self.end_session(at, peer as usize);
                    }
                }
            }
            Settlement::EndParked { peer, .. } => self.end_session(at, peer as usize),
        }
    }

    pub(super) fn session_ended(&mut self, at: usize, pair: usize, lane: LaneKey) {
        let last_up = &mut self.pairs[pair].last_up[at];
        *last_up = last_up.filter(|&last| last != place(lane));
    }

    /// Another session begins while an older lane still carries one.
    fn leave_behind(&mut self, at: usize, pair: usize) {
        let peer = &mut self.ends[at].peers[pair];
        if let Some(lane) = peer.on.take() {
            assert!(self.amnesia, "the peer has given nothing up");
            count(5);
            peer.older.push(OlderSession {
                lane,
                session: peer.session.take().unwrap(),
                kept: std::mem::take(&mut peer.kept),
                delivered: self.delivered[at][pair],
            });
        }
    }

    fn meet(&mut self, at: usize, pair: usize, lane: usize, received: ResumeState) {
        let session = self.ends[at].peers[pair].session.as_mut().unwrap();
        let before = session.unconfirmed();
        let outcome = session.meet(&start(pair, lane), received, 0);
        if let Ok(ResumeOutcome::Continues(replay)) = outcome {
            count(4);
            self.arrived((at, pair, lane), before - replay.count);
        }
        self.event(at, |life, view, now| {
            life.met(key(pair, lane), outcome, view, now);
        });
    }

    /// A session is over, and its messages under way are lost.
    fn end_session(&mut self, at: usize, pair: usize) {
        let peer = &mut self.ends[at].peers[pair];
        assert!(peer.on.is_none() && peer.session.take().is_some());
        let kept = std::mem::take(&mut peer.kept);
        assert!(self.amnesia || kept.is_empty(), "{kept:?} lost");
        self.lost += kept.len() as u64;
    }

    fn by_key(&mut self, lane: LaneKey) -> (&mut SimLane, usize) {
        let pair = lane.to_bits() as u32 as usize % PAIRS;
        (&mut self.pairs[pair].lanes[place(lane)], pair)
    }

    /// An end of a lane is reported to the handshake. If the end may not send on it yet, its
    /// request fails with the lane, and for the handshake its session is over.
    fn report_end(&mut self, at: usize, lane: LaneKey, why: EndReason) {
        let amnesia = self.amnesia;
        let (this, pair) = self.by_key(lane);
        if this.dropped[at].is_some() {
            return;
        }
        this.dropped[at] = Some(why);
        if this.handshake_knows[at] || !amnesia {
            return;
        }
        let pair = &mut self.pairs[pair];
        if pair.requested[at].take().is_some() {
            pair.last_up[at] = None;
            pair.failed[at] = Some(why);
        }
    }

    fn release(&mut self, at: usize, lane: LaneKey) {
        let (this, _) = self.by_key(lane);
        assert_ne!(this.state[at], SimLaneState::Gone, "released twice");
        let is_drained = this.drained[at] || !this.carries[at];
        assert!(is_drained || this.kind == LaneKind::Ud, "it is not drained");
        assert!(this.dropped[at].is_some() || this.kind == LaneKind::Ud);
        this.state[at] = SimLaneState::Gone;
        this.to[at].clear();
    }

    fn lend(&mut self, at: usize, peer: u32, lends: bool) {
        let peer = &mut self.ends[at].peers[peer as usize];
        assert_ne!(std::mem::replace(&mut peer.lent, lends), lends);
    }
}
