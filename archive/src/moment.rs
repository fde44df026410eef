//! Moments, as people write them: UTC.

/// A moment for people: UTC, to the second.
#[must_use]
pub fn time_text(ms: u64) -> String {
    let (days, seconds) = (ms / 86_400_000, ms / 1_000 % 86_400);
    let (year, month, day) = date_of(days);
    format!(
        "{year:04}-{month:02}-{day:02}T{:02}:{:02}:{:02}Z",
        seconds / 3_600,
        seconds / 60 % 60,
        seconds % 60
    )
}

/// Reads a moment as [`time_text`] writes it, to the day, the minute, the second or less; `T` may be a
/// space, and `Z` may be left out. Gives its last millisecond: `12:30` is all of that minute.
#[must_use]
pub fn read_time(text: &str) -> Option<u64> {
    let text = text.trim().trim_end_matches('Z');
    let (date, time) = text.split_once(['T', ' ']).unwrap_or((text, ""));
    let mut parts = date.splitn(3, '-').map(str::parse::<u64>);
    let (year, month, day) = (parts.next()?.ok()?, parts.next()?.ok()?, parts.next()?.ok()?);
    if !(1970..=9_999).contains(&year) || !(1..=12).contains(&month) || !(1..=31).contains(&day) {
        return None;
    }
    let (time, part) = time.split_once('.').unwrap_or((time, ""));
    let mut fields = time.split(':').filter(|field| !field.is_empty()).map(str::parse::<u64>);
    let mut field = || fields.next().transpose().ok();
    let (hour, minute, second) = (field()?, field()?, field()?);
    let is_more = fields.next().is_some() || (!part.is_empty() && second.is_none());
    if is_more || date_of(days_of(year, month, day)) != (year, month, day) {
        return None;
    }
    if hour.unwrap_or(0) > 23 || minute.unwrap_or(0) > 59 || second.unwrap_or(0) > 59 {
        return None;
    }
    let begin = days_of(year, month, day) * 86_400
        + hour.unwrap_or(0) * 3_600
        + minute.unwrap_or(0) * 60
        + second.unwrap_or(0);
    let length = match (hour, minute, second) {
        (None, ..) => 86_400,
        (_, None, _) => 3_600,
        (_, _, None) => 60,
        _ => 1,
    };
    let ms = if part.is_empty() { None } else { format!("{part:0<3}").get(..3)?.parse::<u64>().ok() };
    match (part.is_empty(), ms) {
        (false, None) => None,
        (false, Some(ms)) => Some(begin * 1_000 + ms),
        _ => Some(begin * 1_000 + length * 1_000 - 1),
    }
}

/// Days since 1970 of a date (Hinnant's algorithm for the civil calendar).
fn days_of(year: u64, month: u64, day: u64) -> u64 {
    let year = if month <= 2 { year - 1 } else { year };
    let (era, of_era) = (year / 400, year % 400);
    let of_year = (153 * ((month + 9) % 12) + 2) / 5 + day - 1;
    era * 146_097 + of_era * 365 + of_era / 4 - of_era / 100 + of_year - 719_468
}

fn date_of(days: u64) -> (u64, u64, u64) {
    let days = days + 719_468;
    let (era, of_era) = (days / 146_097, days % 146_097);
    let of_400 = (of_era - of_era / 1_460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * of_400 + of_400 / 4 - of_400 / 100);
    let month = (5 * of_year + 2) / 153;
    let day = of_year - (153 * month + 2) / 5 + 1;
    let month = if month < 10 { month + 3 } else { month - 9 };
    (of_400 + era * 400 + u64::from(month <= 2), month, day)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_read_as_they_are_written() {
        for ms in [0, 951_782_400_000, 1_795_780_799_000, 4_102_444_799_000] {
            assert_eq!(read_time(&time_text(ms)), Some(ms + 999), "{}", time_text(ms));
        }
        assert_eq!(time_text(951_782_400_000), "2000-02-29T00:00:00Z");
        assert_eq!(read_time("2000-02-29 12:30"), Some(951_782_400_000 + 12 * 3_600_000 + 31 * 60_000 - 1));
        assert_eq!(read_time("2000-02-29T00:00:01.5"), Some(951_782_401_500));
        let times =
            ["2000-02-29T25:00", "2000-02-29T00:00:00.x", "2000-02-29T00:12.5", "2000-02-29T00:12:30:99"];
        for wrong in
            ["", "now", "2000-13-01", "1969-01-01", "2026-02-31", "2026-02-29"].into_iter().chain(times)
        {
            assert_eq!(read_time(wrong), None, "{wrong}");
        }
    }
}
