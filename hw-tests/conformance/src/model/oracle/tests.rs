//! Tests of the histories that the oracle allows, and of those that it forbids.

use super::*;

const A: FiAddr = FiAddr(10);
const B: FiAddr = FiAddr(11);

/// A receiver that has inserted sender 0 as `A` and sender 1 as `B`.
#[derive(Default)]
struct Story(ReceiverHistory);

impl Story {
    fn new() -> Self {
        let mut story = Self::default();
        story.0.events = vec![ReceiverEvent::Inserted(0, A), ReceiverEvent::Inserted(1, B)];
        story
    }

    fn sent(mut self, from: usize, tag: u64) -> Self {
        let number = self.0.messages.len();
        self.0.events.push(ReceiverEvent::Sent(number));
        self.0.messages.push(SentMessage {
            number,
            from,
            kind: MsgKind::Tagged,
            tag,
            len: 8,
            data: None,
            may_be_lost: false,
        });
        self
    }

    fn told(&self, number: usize) -> MessageFacts {
        let message = &self.0.messages[number];
        MessageFacts {
            src: [A, B][message.from],
            tag: message.tag,
            len: 8,
            data: None,
            number: Some(number),
        }
    }

    /// A receive that gets message `number`.
    fn got(mut self, src: FiAddr, tag: u64, number: usize) -> Self {
        let receive = self.0.receives.len();
        self.0.events.push(ReceiverEvent::Posted(receive));
        let told = self.told(number);
        self.0.receives.push(ReceiveHistory {
            kind: MsgKind::Tagged,
            src,
            tag,
            ignore: 0,
            room: 8,
            multi: false,
            outcomes: vec![ReceiveOutcome::Message {
                told,
                truncated: false,
                offset: 0,
            }],
        });
        self
    }

    fn read(mut self, receive: usize) -> Self {
        let outcome = 0;
        self.0
            .events
            .push(ReceiverEvent::Completed { receive, outcome });
        self
    }

    fn probed(mut self, src: FiAddr, found: Option<usize>) -> Self {
        let found = found.map(|number| self.told(number));
        self.0.events.push(ReceiverEvent::Probed {
            kind: MsgKind::Tagged,
            src,
            tag: 1,
            ignore: 0,
            fate: ProbeFate::Stays,
            found,
        });
        self
    }

    fn allows(self) -> bool {
        match judge(&self.0) {
            OracleVerdict::Allowed => true,
            OracleVerdict::Forbidden(_) => false,
            OracleVerdict::Undecided => panic!("undecided"),
        }
    }
}

#[test]
fn messages_of_one_sender_match_in_their_order() {
    let any = FiAddr::UNSPEC;
    let sent = || Story::new().sent(0, 1).sent(0, 1);
    assert!(sent().got(any, 1, 0).got(A, 1, 1).allows());
    assert!(!sent().got(any, 1, 1).got(A, 1, 0).allows());
    let sent = || Story::new().sent(0, 1).sent(0, 2);
    assert!(sent().got(any, 2, 1).got(A, 1, 0).allows());
}

#[test]
fn messages_of_two_senders_match_in_any_order_that_is_one() {
    let any = FiAddr::UNSPEC;
    let sent = || Story::new().sent(0, 1).sent(1, 1);
    assert!(sent().got(any, 1, 0).got(any, 1, 1).allows());
    assert!(sent().got(any, 1, 1).got(any, 1, 0).allows());
    assert!(sent().got(A, 1, 0).got(any, 1, 1).allows());
    assert!(!sent().got(A, 1, 1).got(B, 1, 0).allows());
    // The second receive would have taken what the peek found.
    let peeked = |first, second| {
        let story = sent().probed(any, Some(0));
        story.got(any, 1, first).got(any, 1, second)
    };
    assert!(peeked(0, 1).allows());
    assert!(!peeked(1, 0).allows());
}

#[test]
fn nothing_is_lost_and_nothing_comes_twice() {
    let any = FiAddr::UNSPEC;
    assert!(!Story::new().sent(0, 1).allows());
    let sent = || Story::new().sent(0, 1).sent(0, 1);
    assert!(!sent().got(any, 1, 0).got(any, 1, 0).allows());
    let mut lost = sent().got(any, 1, 1);
    assert!(!Story(lost.0.clone()).allows());
    lost.0.messages[0].may_be_lost = true;
    assert!(lost.allows());
}

#[test]
fn a_delivered_message_was_matched() {
    let any = FiAddr::UNSPEC;
    let story = |at: usize| {
        let mut story = Story::new().sent(0, 1).got(any, 1, 0);
        story.0.events.insert(at, ReceiverEvent::Delivered(0));
        story
    };
    assert!(story(4).allows());
    assert!(!story(3).allows());
}

#[test]
fn a_message_that_was_found_stays() {
    let any = FiAddr::UNSPEC;
    let sent = || Story::new().sent(0, 1);
    assert!(sent().probed(any, None).got(any, 1, 0).allows());
    let story = sent().probed(any, Some(0)).probed(A, None);
    assert!(!story.got(any, 1, 0).allows());
    // It can not complete before it was sent.
    let story = Story::new().sent(0, 2).got(any, 1, 0);
    assert!(!story.allows());
    let early = Story::new().sent(0, 1).got(any, 1, 0).read(0);
    assert!(early.allows());
    let mut late = Story::new().sent(0, 1).got(any, 1, 0).read(0);
    let sent = late.0.events.remove(2);
    late.0.events.push(sent);
    assert!(!late.allows());
}

#[test]
fn a_cancellation_takes_effect_or_the_receive_has_matched() {
    let cancelled = |mut story: Story, receive, found| {
        let cancel = ReceiverEvent::Cancel { receive, found };
        story.0.events.push(cancel);
        story.read(receive).allows()
    };
    let matched = || Story::new().sent(0, 1).got(FiAddr::UNSPEC, 1, 0);
    assert!(cancelled(matched(), 0, Some(false)));
    assert!(!cancelled(matched(), 0, Some(true)));
    assert!(cancelled(matched(), 0, None));
    let taken_back = || {
        let mut story = matched();
        story.0.events.push(ReceiverEvent::Posted(1));
        let mut receive = story.0.receives[0].clone();
        receive.outcomes = vec![ReceiveOutcome::Cancelled];
        story.0.receives.push(receive);
        story
    };
    assert!(cancelled(taken_back(), 1, Some(true)));
    assert!(!cancelled(taken_back(), 1, Some(false)));
    assert!(cancelled(taken_back(), 1, None));
}

#[test]
fn an_unknown_sender_is_known_once_it_is_inserted() {
    let story = |between: &[ReceiverEvent]| {
        let mut story = Story::new().sent(0, 1);
        story.0.events.insert(2, ReceiverEvent::Removed(0));
        story = story.got(A, 1, 0);
        let posted = story.0.events.pop();
        story.0.events.extend(posted);
        story.0.events.extend_from_slice(between);
        story
    };
    assert!(!story(&[]).allows());
    assert!(story(&[ReceiverEvent::Inserted(0, A)]).allows());
    assert!(!story(&[ReceiverEvent::Inserted(0, B)]).allows());
}
