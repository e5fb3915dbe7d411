//! The matcher against a model that scans vectors, over random programs.

use proptest::prelude::*;

use super::*;

/// One call, or what a transport does in one go.
#[derive(Clone, Debug)]
enum Op {
    /// `arrive`, and `queue` if nothing matches.
    Arrive {
        src: FiAddr,
        tag: u64,
        len: u64,
    },
    Post {
        want: Want,
        context: u64,
    },
    PostList {
        want: Want,
        context: u64,
    },
    PostMulti {
        want: Want,
        context: u64,
        len: usize,
    },
    Cancel {
        context: u64,
    },
    Peek(Want),
    Claim {
        want: Want,
        context: u64,
    },
    TakeClaimed {
        context: u64,
    },
    Discard(Want),
    Withdraw {
        nth: usize,
    },
    Resolve {
        src: u64,
    },
    Forget {
        src: FiAddr,
    },
    Fail {
        src: FiAddr,
        all: bool,
    },
    MinMultiRecv {
        bytes: usize,
    },
}

#[derive(Clone, Copy, Debug)]
struct Want {
    src: FiAddr,
    tag: u64,
    ignore: u64,
}

impl Want {
    fn takes(&self, a: &Arrived) -> bool {
        let from = self.src == FiAddr::UNSPEC || (a.src != FiAddr::NOTAVAIL && a.src == self.src);
        from && (self.tag ^ a.tag) & !self.ignore == 0
    }
}

struct ModelPosted {
    posted: Posted,
    multi: bool,
}

impl ModelPosted {
    fn want(&self) -> Want {
        let Posted {
            src, tag, ignore, ..
        } = self.posted;
        Want { src, tag, ignore }
    }
}

#[derive(Clone, Copy)]
struct ModelMessage {
    id: UnexpectedId,
    message: Unexpected<u64>,
    claimed: Option<(u64, u64)>,
}

/// Tokens number the messages in order of arrival, descriptors the receives in order of posting.
#[derive(Default)]
struct Model {
    posted: Vec<ModelPosted>,
    messages: Vec<ModelMessage>,
    min_multi_recv: usize,
    claims: u64,
    posted_max: usize,
    unexpected_max: usize,
}

impl Model {
    fn consume(posted: &mut Posted, multi: bool, len: u64, min: usize) -> Matched {
        let mut matched = Matched {
            buf: posted.buf.clone(),
            desc: posted.desc,
            context: posted.context,
            flags: posted.flags,
            last: multi,
        };
        if let (true, Buffers::One(buf)) = (multi, &mut posted.buf) {
            let len = len as usize;
            if buf.len >= len && buf.len - len >= min {
                matched.last = false;
                matched.buf = Buffers::One(IoBuf {
                    addr: buf.addr,
                    len,
                });
                buf.addr += len;
                buf.len -= len;
            }
        }
        matched
    }

    fn arrive(&mut self, a: &Arrived) -> Option<Matched> {
        let at = self.posted.iter().position(|p| p.want().takes(a))?;
        let ModelPosted { posted, multi } = &mut self.posted[at];
        let matched = Model::consume(posted, *multi, a.len, self.min_multi_recv);
        if !*multi || matched.last {
            self.posted.remove(at);
        }
        Some(matched)
    }

    fn find(&self, want: Want) -> Option<usize> {
        self.messages
            .iter()
            .position(|m| m.claimed.is_none() && want.takes(&m.message.arrived))
    }

    fn post(&mut self, mut posted: Posted, multi: bool) -> Vec<Start<u64>> {
        let Posted {
            src, tag, ignore, ..
        } = posted;
        let mut start = Vec::new();
        while let Some(at) = self.find(Want { src, tag, ignore }) {
            let message = self.messages.remove(at).message;
            let len = message.arrived.len;
            let matched = Model::consume(&mut posted, multi, len, self.min_multi_recv);
            let done = !multi || matched.last;
            start.push(Start { matched, message });
            if done {
                return start;
            }
        }
        self.posted.push(ModelPosted { posted, multi });
        self.posted_max = self.posted_max.max(self.posted.len());
        start
    }

    fn resolve(&mut self, src: u64) -> Vec<Start<u64>> {
        let mut start = Vec::new();
        let tokens: Vec<u64> = self.messages.iter().map(|m| m.message.token).collect();
        for token in tokens {
            let by_token = |m: &ModelMessage| m.message.token == token;
            let at = self.messages.iter().position(by_token).unwrap();
            let m = &mut self.messages[at];
            if m.message.arrived.src != FiAddr::NOTAVAIL || token % 3 != src {
                continue;
            }
            m.message.arrived.src = FiAddr(src);
            if m.claimed.is_some() {
                continue;
            }
            let message = m.message;
            if let Some(matched) = self.arrive(&message.arrived) {
                self.messages.remove(at);
                start.push(Start { matched, message });
            }
        }
        start
    }

    fn queued(&self) -> usize {
        self.messages.iter().filter(|m| m.claimed.is_none()).count()
    }
}

fn arrived(src: FiAddr, tag: u64, len: u64) -> Arrived {
    Arrived {
        src,
        tag,
        len,
        data: tag ^ len,
        flags: Flags::REMOTE_CQ_DATA,
    }
}

fn run(program: &[Op]) -> Result<(), TestCaseError> {
    let mut matcher: Matcher<u64> = Matcher::new(0);
    let mut model = Model {
        min_multi_recv: 1,
        ..Model::default()
    };
    let mut ids = Vec::new();
    let mut posts = 0;
    let mut receive = |want: Want, context: u64, buf: Buffers| {
        posts += 1;
        Posted {
            src: want.src,
            tag: want.tag,
            ignore: want.ignore,
            buf,
            desc: posts,
            context,
            flags: Flags::COMPLETION,
        }
    };
    let one = |len| Buffers::One(IoBuf { addr: 0x1000, len });
    for op in program {
        match *op {
            Op::Arrive { src, tag, len } => {
                let a = arrived(src, tag, len);
                let matched = matcher.arrive(&a);
                prop_assert_eq!(&matched, &model.arrive(&a));
                if matched.is_none() {
                    let token = ids.len() as u64;
                    let id = matcher.queue(a, token);
                    ids.push(id);
                    let message = Unexpected { arrived: a, token };
                    model.messages.push(ModelMessage {
                        id,
                        message,
                        claimed: None,
                    });
                    model.unexpected_max = model.unexpected_max.max(model.queued());
                }
            }
            Op::Post { want, context } => {
                let p = receive(want, context, one(64));
                let start: Vec<_> = matcher.post(p.clone()).into_iter().collect();
                prop_assert_eq!(start, model.post(p, false));
            }
            Op::PostList { want, context } => {
                let list = [IoBuf { addr: 8, len: 8 }, IoBuf { addr: 32, len: 4 }];
                let p = receive(want, context, Buffers::Many(Box::new(list)));
                let mut start = Vec::new();
                matcher.post_multi(p.clone(), &mut start);
                prop_assert_eq!(start, model.post(p, true));
            }
            Op::PostMulti { want, context, len } => {
                let p = receive(want, context, one(len));
                let mut start = Vec::new();
                matcher.post_multi(p.clone(), &mut start);
                prop_assert_eq!(start, model.post(p, true));
            }
            Op::Cancel { context } => {
                let with = |p: &ModelPosted| p.posted.context == context;
                let at = model.posted.iter().position(with);
                let expected = at.map(|at| model.posted.remove(at).posted);
                prop_assert_eq!(matcher.cancel(context), expected);
            }
            Op::Peek(w) => {
                let expected = model.find(w).map(|at| model.messages[at].message);
                prop_assert_eq!(matcher.peek(w.src, w.tag, w.ignore), expected);
            }
            Op::Claim { want: w, context } => {
                let expected = model.find(w).map(|at| {
                    model.claims += 1;
                    model.messages[at].claimed = Some((context, model.claims));
                    model.messages[at].message
                });
                prop_assert_eq!(matcher.claim(w.src, w.tag, w.ignore, context), expected);
            }
            Op::TakeClaimed { context } => {
                let claim = |m: &ModelMessage| m.claimed.filter(|c| c.0 == context);
                let first = (0..model.messages.len())
                    .filter(|&at| claim(&model.messages[at]).is_some())
                    .min_by_key(|&at| claim(&model.messages[at]));
                let expected = first.map(|at| model.messages.remove(at).message);
                prop_assert_eq!(matcher.take_claimed(context), expected);
            }
            Op::Discard(w) => {
                let expected = model.find(w).map(|at| model.messages.remove(at).message);
                prop_assert_eq!(matcher.discard(w.src, w.tag, w.ignore), expected);
            }
            Op::Withdraw { nth } => {
                if let Some(&id) = ids.get(nth.wrapping_rem(ids.len().max(1))) {
                    let at = model.messages.iter().position(|m| m.id == id);
                    let expected = at.map(|at| model.messages.remove(at).message);
                    prop_assert_eq!(matcher.withdraw(id), expected);
                }
            }
            Op::Resolve { src } => {
                let mut start = Vec::new();
                let source_of = |m: &Unexpected<u64>| {
                    if m.token % 3 == src {
                        FiAddr(src)
                    } else {
                        FiAddr::NOTAVAIL
                    }
                };
                matcher.resolve(source_of, &mut start);
                prop_assert_eq!(start, model.resolve(src));
            }
            Op::Forget { src } => {
                matcher.forget_source(src);
                for m in &mut model.messages {
                    if m.message.arrived.src == src {
                        m.message.arrived.src = FiAddr::NOTAVAIL;
                    }
                }
            }
            Op::Fail { src, all } => {
                let lost = |m: &Unexpected<u64>| all || m.token % 2 == 0;
                let (mut receives, mut messages) = (Vec::new(), Vec::new());
                matcher.fail_source(src, lost, &mut receives, &mut messages);
                let known = src != FiAddr::NOTAVAIL;
                let expected = model
                    .posted
                    .extract(|p| known && p.posted.src == src)
                    .map(|p| p.posted);
                prop_assert!(receives.into_iter().eq(expected));
                let expected = model
                    .messages
                    .extract(|m| known && m.message.arrived.src == src && lost(&m.message))
                    .map(|m| m.message);
                prop_assert!(messages.into_iter().eq(expected));
            }
            Op::MinMultiRecv { bytes } => {
                matcher.set_min_multi_recv(bytes);
                model.min_multi_recv = bytes.max(1);
            }
        }
        let stats = matcher.stats();
        prop_assert_eq!(stats.posted, model.posted.len());
        prop_assert_eq!(stats.posted_max, model.posted_max);
        prop_assert_eq!(stats.unexpected, model.queued());
        prop_assert_eq!(stats.unexpected_max, model.unexpected_max);
        prop_assert_eq!(stats.claimed, model.messages.len() - model.queued());
    }
    let (mut receives, mut messages) = (Vec::new(), Vec::new());
    matcher.drain(&mut receives, &mut messages);
    prop_assert!(
        receives
            .into_iter()
            .eq(model.posted.into_iter().map(|p| p.posted))
    );
    prop_assert!(
        messages
            .into_iter()
            .eq(model.messages.into_iter().map(|m| m.message))
    );
    prop_assert_eq!(matcher.stats().posted, 0);
    prop_assert_eq!(matcher.stats().unexpected + matcher.stats().claimed, 0);
    Ok(())
}

trait Extract<M> {
    /// Takes out what satisfies `take`, in order.
    fn extract(&mut self, take: impl Fn(&M) -> bool) -> std::vec::IntoIter<M>;
}

impl<M> Extract<M> for Vec<M> {
    fn extract(&mut self, take: impl Fn(&M) -> bool) -> std::vec::IntoIter<M> {
        let (out, stay) = std::mem::take(self).into_iter().partition(take);
        *self = stay;
        let out: Vec<M> = out;
        out.into_iter()
    }
}

fn source() -> impl Strategy<Value = FiAddr> {
    prop_oneof![4 => (0..3u64).prop_map(FiAddr), 1 => Just(FiAddr::NOTAVAIL)]
}

/// `bits` 2: few masks and deep queues; 7: more masks than there are classes.
fn want(bits: u32) -> impl Strategy<Value = Want> {
    let all = (1u64 << bits) - 1;
    let ignore = prop_oneof![3 => Just(0), 2 => 0..=all, 1 => Just(u64::MAX)];
    let src = prop_oneof![1 => source(), 1 => Just(FiAddr::UNSPEC)];
    (src, 0..=all, ignore).prop_map(|(src, tag, ignore)| Want { src, tag, ignore })
}

fn op(bits: u32, arrive: u32, post: u32) -> impl Strategy<Value = Op> {
    let want = || want(bits);
    let context = || 0..6u64;
    prop_oneof![
        arrive => (source(), 0..1u64 << bits, 0..40u64)
            .prop_map(|(src, tag, len)| Op::Arrive { src, tag, len }),
        post => (want(), context()).prop_map(|(want, context)| Op::Post { want, context }),
        1 => (want(), context()).prop_map(|(want, context)| Op::PostList { want, context }),
        2 => (want(), context(), 0..200usize)
            .prop_map(|(want, context, len)| Op::PostMulti { want, context, len }),
        2 => context().prop_map(|context| Op::Cancel { context }),
        1 => want().prop_map(Op::Peek),
        1 => (want(), context()).prop_map(|(want, context)| Op::Claim { want, context }),
        1 => context().prop_map(|context| Op::TakeClaimed { context }),
        1 => want().prop_map(Op::Discard),
        1 => any::<usize>().prop_map(|nth| Op::Withdraw { nth }),
        1 => (0..3u64).prop_map(|src| Op::Resolve { src }),
        1 => source().prop_map(|src| Op::Forget { src }),
        1 => (source(), any::<bool>()).prop_map(|(src, all)| Op::Fail { src, all }),
        1 => (0..32usize).prop_map(|bytes| Op::MinMultiRecv { bytes }),
    ]
}

/// Programs in which receives pile up, messages pile up, or neither.
fn program() -> impl Strategy<Value = Vec<Op>> {
    (
        prop_oneof![Just(2u32), Just(7u32)],
        prop_oneof![Just((10u32, 40u32)), Just((40, 10)), Just((20, 20))],
    )
        .prop_flat_map(|(bits, (arrive, post))| {
            prop::collection::vec(op(bits, arrive, post), 1..400)
        })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, ..ProptestConfig::default() })]

    /// Whatever is called in whatever order, the matcher answers as the model does.
    ///
    /// Covers: PEER-8, PEER-9, PEER-10
    #[test]
    fn matches_as_the_model(program in program()) {
        run(&program)?;
    }
}
