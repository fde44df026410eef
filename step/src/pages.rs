//! The characters that `\S\` means in each page, as the parts of ISO 8859 have them.

/// The character of a page, A for part 1 of ISO 8859 to I for part 9, that stands 128 above `low`. None of
/// another letter, and none where the part has no character.
pub(crate) fn character(page: u8, low: u8) -> Option<char> {
    let index = low.checked_sub(0x20).filter(|index| *index < 96)?;
    let upper = match page {
        b'A' => return Some(char::from(low + 0x80)),
        b'B' => B,
        b'C' => C,
        b'D' => D,
        b'E' => E,
        b'F' => F,
        b'G' => G,
        b'H' => H,
        b'I' => I,
        _ => return None,
    };
    upper.chars().nth(index.into()).filter(|c| *c != NONE)
}

/// A place of a page without a character.
const NONE: char = '\u{fffd}';

const B: &str = "\
    \u{a0}Ą˘Ł¤ĽŚ§¨ŠŞŤŹ\u{ad}ŽŻ°ą˛ł´ľśˇ¸šşťź˝žżŔÁÂĂÄĹĆÇČÉĘËĚÍÎĎĐŃŇÓÔŐÖ×ŘŮÚŰÜÝŢßŕáâăäĺćçčéęëěíîď\
    đńňóôőö÷řůúűüýţ˙\
";
const C: &str = "\
    \u{a0}Ħ˘£¤\u{fffd}Ĥ§¨İŞĞĴ\u{ad}\u{fffd}Ż°ħ²³´µĥ·¸ışğĵ½\u{fffd}żÀÁÂ\u{fffd}ÄĊĈÇÈÉÊËÌÍÎÏ\
    \u{fffd}ÑÒÓÔĠÖ×ĜÙÚÛÜŬŜßàáâ\u{fffd}äċĉçèéêëìíîï\u{fffd}ñòóôġö÷ĝùúûüŭŝ˙\
";
const D: &str = "\
    \u{a0}ĄĸŖ¤ĨĻ§¨ŠĒĢŦ\u{ad}Ž¯°ą˛ŗ´ĩļˇ¸šēģŧŊžŋĀÁÂÃÄÅÆĮČÉĘËĖÍÎĪĐŅŌĶÔÕÖ×ØŲÚÛÜŨŪßāáâãäåæįčéęëėíîī\
    đņōķôõö÷øųúûüũū˙\
";
const E: &str = "\
    \u{a0}ЁЂЃЄЅІЇЈЉЊЋЌ\u{ad}ЎЏАБВГДЕЖЗИЙКЛМНОПРСТУФХЦЧШЩЪЫЬЭЮЯабвгдежзийклмнопрстуфхцчшщъыьэюя\
    №ёђѓєѕіїјљњћќ§ўџ\
";
const F: &str = "\
    \u{a0}\u{fffd}\u{fffd}\u{fffd}¤\u{fffd}\u{fffd}\u{fffd}\u{fffd}\u{fffd}\u{fffd}\u{fffd}\
    \u{60c}\u{ad}\u{fffd}\u{fffd}\u{fffd}\u{fffd}\u{fffd}\u{fffd}\u{fffd}\u{fffd}\u{fffd}\
    \u{fffd}\u{fffd}\u{fffd}\u{fffd}\u{61b}\u{fffd}\u{fffd}\u{fffd}\u{61f}\u{fffd}\u{621}\
    \u{622}\u{623}\u{624}\u{625}\u{626}\u{627}\u{628}\u{629}\u{62a}\u{62b}\u{62c}\u{62d}\
    \u{62e}\u{62f}\u{630}\u{631}\u{632}\u{633}\u{634}\u{635}\u{636}\u{637}\u{638}\u{639}\
    \u{63a}\u{fffd}\u{fffd}\u{fffd}\u{fffd}\u{fffd}\u{640}\u{641}\u{642}\u{643}\u{644}\u{645}\
    \u{646}\u{647}\u{648}\u{649}\u{64a}\u{64b}\u{64c}\u{64d}\u{64e}\u{64f}\u{650}\u{651}\
    \u{652}\u{fffd}\u{fffd}\u{fffd}\u{fffd}\u{fffd}\u{fffd}\u{fffd}\u{fffd}\u{fffd}\u{fffd}\
    \u{fffd}\u{fffd}\u{fffd}\
";
const G: &str = "\
    \u{a0}‘’£€₯¦§¨©ͺ«¬\u{ad}\u{fffd}―°±²³΄΅Ά·ΈΉΊ»Ό½ΎΏΐΑΒΓΔΕΖΗΘΙΚΛΜΝΞΟΠΡ\u{fffd}ΣΤΥΦΧΨΩΪΫάέήίΰα\
    βγδεζηθικλμνξοπρςστυφχψωϊϋόύώ\u{fffd}\
";
const H: &str = "\
    \u{a0}\u{fffd}¢£¤¥¦§¨©×«¬\u{ad}®¯°±²³´µ¶·¸¹÷»¼½¾\u{fffd}\u{fffd}\u{fffd}\u{fffd}\u{fffd}\
    \u{fffd}\u{fffd}\u{fffd}\u{fffd}\u{fffd}\u{fffd}\u{fffd}\u{fffd}\u{fffd}\u{fffd}\u{fffd}\
    \u{fffd}\u{fffd}\u{fffd}\u{fffd}\u{fffd}\u{fffd}\u{fffd}\u{fffd}\u{fffd}\u{fffd}\u{fffd}\
    \u{fffd}\u{fffd}\u{fffd}\u{fffd}\u{fffd}‗\u{5d0}\u{5d1}\u{5d2}\u{5d3}\u{5d4}\u{5d5}\u{5d6}\
    \u{5d7}\u{5d8}\u{5d9}\u{5da}\u{5db}\u{5dc}\u{5dd}\u{5de}\u{5df}\u{5e0}\u{5e1}\u{5e2}\
    \u{5e3}\u{5e4}\u{5e5}\u{5e6}\u{5e7}\u{5e8}\u{5e9}\u{5ea}\u{fffd}\u{fffd}\u{200e}\u{200f}\
    \u{fffd}\
";
const I: &str = "\
    \u{a0}¡¢£¤¥¦§¨©ª«¬\u{ad}®¯°±²³´µ¶·¸¹º»¼½¾¿ÀÁÂÃÄÅÆÇÈÉÊËÌÍÎÏĞÑÒÓÔÕÖ×ØÙÚÛÜİŞßàáâãäåæçèéêëìíîï\
    ğñòóôõö÷øùúûüışÿ\
";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_page_has_96_places() {
        for page in [B, C, D, E, F, G, H, I] {
            assert_eq!(page.chars().count(), 96, "{page}");
        }
        assert_eq!(
            [b'A', b'E', b'F', b'I'].map(|page| character(page, b'P')),
            ['Ð', 'а', 'ذ', 'Ğ'].map(Some)
        );
        assert_eq!((character(b'J', b'P'), character(b'A', 0x1f), character(b'A', 0x80)), (None, None, None));
        assert_eq!(character(b'C', 0x25), None, "part 3 has no character there");
    }
}
