//! A machine sends frames to the host (`ci/machine/guest-run`): "KIND LENGTH\n" and data. Kind
//! "o" is the command's standard output, "e" its standard error, "s" what the machine reports. They
//! come in one channel, so that output keeps its order, and an exit code comes after the last of
//! it.

use std::io::{self, BufRead, Read, Write};

/// Takes frames apart until they end: output goes to `out` and `err`, each line after `prefix`,
/// reports as "NODE REPORT" to `reports`.
///
/// # Errors
///
/// If something else than a frame comes, or nobody takes what goes out.
pub(crate) fn take_apart(
    mut frames: impl BufRead,
    node: u32,
    prefix: &str,
    out: impl Write,
    err: impl Write,
    mut reports: impl Write,
) -> io::Result<()> {
    let mut out = PrefixedLines::new(out, prefix);
    let mut err = PrefixedLines::new(err, prefix);
    while let Some((kind, data)) = next(&mut frames)? {
        match kind {
            b'o' => out.take(&data)?,
            b'e' => err.take(&data)?,
            _ => {
                if data.starts_with(b"exit") {
                    out.finish()?;
                    err.finish()?;
                }
                // In one piece: two machines write to the same place, and `ci/machine/follow.sh`
                // waits for the first letter alone.
                let report = [format!("{node} ").as_bytes(), &data, b"\n"].concat();
                reports.write_all(&report)?;
            }
        }
    }
    out.finish()?;
    err.finish()
}

/// The next frame's kind and data. A frame that is not whole is the end.
fn next(frames: &mut impl BufRead) -> io::Result<Option<(u8, Vec<u8>)>> {
    let mut header = Vec::new();
    if frames.read_until(b'\n', &mut header)? == 0 {
        return Ok(None);
    }
    let Some((kind, length)) = understood(&header) else {
        let header = String::from_utf8_lossy(&header);
        return Err(io::Error::other(format!("not a frame: {header}")));
    };
    let mut data = Vec::new();
    frames.take(length).read_to_end(&mut data)?;
    Ok((data.len() as u64 == length).then_some((kind, data)))
}

fn understood(header: &[u8]) -> Option<(u8, u64)> {
    let (kind, length) = std::str::from_utf8(header)
        .ok()?
        .trim_end()
        .split_once(' ')?;
    let &[kind @ (b'o' | b'e' | b's')] = kind.as_bytes() else {
        return None;
    };
    Some((kind, length.parse().ok()?))
}

/// Output whose lines get a prefix. Without one, it goes on as it comes.
struct PrefixedLines<'a, W> {
    to: W,
    prefix: &'a str,
    /// The last line, which has no end yet: two machines write to the same place.
    unfinished: Vec<u8>,
}

impl<'a, W: Write> PrefixedLines<'a, W> {
    fn new(to: W, prefix: &'a str) -> Self {
        PrefixedLines {
            to,
            prefix,
            unfinished: Vec::new(),
        }
    }

    fn take(&mut self, data: &[u8]) -> io::Result<()> {
        if self.prefix.is_empty() {
            self.to.write_all(data)?;
            return self.to.flush();
        }
        let mut whole = Vec::new();
        for piece in data.split_inclusive(|byte| *byte == b'\n') {
            self.unfinished.extend_from_slice(piece);
            if piece.ends_with(b"\n") {
                whole.extend_from_slice(self.prefix.as_bytes());
                whole.append(&mut self.unfinished);
            }
        }
        self.to.write_all(&whole)?;
        self.to.flush()
    }

    fn finish(&mut self) -> io::Result<()> {
        match self.unfinished.is_empty() {
            true => Ok(()),
            false => self.take(b"\n"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Takes frames apart: gives output, errors and reports.
    fn taken(frames: &str, prefix: &str) -> io::Result<[String; 3]> {
        let (mut out, mut err, mut reports) = (Vec::new(), Vec::new(), Vec::new());
        take_apart(
            frames.as_bytes(),
            1,
            prefix,
            &mut out,
            &mut err,
            &mut reports,
        )?;
        Ok([out, err, reports].map(|bytes| String::from_utf8(bytes).expect("text")))
    }

    #[test]
    fn output_errors_and_reports_go_their_ways() {
        let frames = "s 5\nreadyo 3\na\nbe 4\noh\n\no 2\nc\ns 6\nexit 7";
        let [out, err, reports] = taken(frames, "").expect("frames");
        assert_eq!(out, "a\nbc\n");
        assert_eq!(err, "oh\n\n");
        assert_eq!(reports, "1 ready\n1 exit 7\n");
    }

    #[test]
    fn a_report_is_written_in_one_piece() {
        struct Pieces(Vec<Vec<u8>>);
        impl Write for Pieces {
            fn write(&mut self, piece: &[u8]) -> io::Result<usize> {
                self.0.push(piece.to_vec());
                Ok(piece.len())
            }

            fn flush(&mut self) -> io::Result<()> {
                Ok(())
            }
        }
        let mut reports = Pieces(Vec::new());
        let frames = "s 5\nreadys 6\nexit 7".as_bytes();
        take_apart(frames, 0, "", io::sink(), io::sink(), &mut reports).expect("frames");
        assert_eq!(reports.0, [&b"0 ready\n"[..], b"0 exit 7\n"]);
    }

    #[test]
    fn whole_lines_get_the_prefix() {
        let frames = "o 3\na\nbe 2\nohs 5\nreadyo 4\nc\nd\no 1\nes 6\nexit 0";
        let [out, err, reports] = taken(frames, "[1] ").expect("frames");
        assert_eq!(out, "[1] a\n[1] bc\n[1] d\n[1] e\n");
        assert_eq!(err, "[1] oh\n");
        assert_eq!(reports, "1 ready\n1 exit 0\n");
    }

    #[test]
    fn a_frame_that_is_not_whole_is_the_end() {
        let [out, _, _] = taken("o 2\na\no 5\nab", "").expect("frames");
        assert_eq!(out, "a\n");
        let [out, _, _] = taken("o 1\na", "[1] ").expect("frames");
        assert_eq!(out, "[1] a\n");
    }

    #[test]
    fn what_is_no_frame_is_an_error() {
        for frames in [
            "x 1\na",
            "o\n",
            "o -1\n",
            "kernel: oops\n",
            "o 99999999999999999999\n",
        ] {
            assert!(taken(frames, "").is_err(), "{frames}");
        }
    }
}
