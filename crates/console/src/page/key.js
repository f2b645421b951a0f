// Keys are bytes: how they are shown, typed, and put into addresses.
//
//   bytes   <-> percent-encoded, as the node gives and takes them
//   bytes   <-> shown: text, with escapes for what is invisible, misleading or no text: \x00 \xff \u{202e} \\

const UTF8 = new TextEncoder();
// Control and format characters, unassigned ones, and blanks that are not the blank.
const UNSEEN = /[\p{C}\p{Z}]/u;

/** The bytes of a percent-encoded key. */
export function decode(encoded) {
  const bytes = [];
  for (let at = 0; at < encoded.length; at += 1) {
    if (encoded[at] === "%") {
      bytes.push(parseInt(encoded.slice(at + 1, at + 3), 16));
      at += 2;
    } else {
      bytes.push(encoded.charCodeAt(at));
    }
  }
  return Uint8Array.from(bytes);
}

/** Bytes, percent-encoded. */
export function encode(bytes) {
  return Array.from(bytes, (byte) => `%${byte.toString(16).padStart(2, "0")}`).join("");
}

/** Bytes as text with escapes: no two keys look alike but for the shapes of letters. */
export function shown(bytes) {
  let text = "";
  for (let at = 0; at < bytes.length;) {
    const character = first(bytes.subarray(at, at + 4));
    if (character === undefined) {
      text += `\\x${bytes[at].toString(16).padStart(2, "0")}`;
      at += 1;
    } else {
      const is_edge = at === 0 || at + 1 === bytes.length;
      text += escaped(character, is_edge);
      at += UTF8.encode(character).length;
    }
  }
  return text;
}

/** The first character of some bytes, if they begin with one. */
function first(bytes) {
  const length = bytes[0] < 0x80 ? 1 : bytes[0] < 0xe0 ? 2 : bytes[0] < 0xf0 ? 3 : 4;
  try {
    return bytes.length < length ? undefined : new TextDecoder("utf-8", { fatal: true, ignoreBOM: true }).decode(bytes.subarray(0, length));
  } catch {
    return undefined;
  }
}

function escaped(character, is_edge) {
  if (character === "\\") return "\\\\";
  if (character === " ") return is_edge ? "\\x20" : " ";
  if (!UNSEEN.test(character)) return character;
  const point = character.codePointAt(0);
  return point < 0x80 ? `\\x${point.toString(16).padStart(2, "0")}` : `\\u{${point.toString(16)}}`;
}

/** The bytes of text with such escapes; throws an Error for one that is none. */
export function typed(text) {
  const bytes = [];
  const pattern = /\\(?:x([0-9a-f]{2})|u\{([0-9a-f]{1,6})\}|(\\)|)|[^\\]/giuy;
  for (const [whole, byte, point, backslash] of text.matchAll(pattern)) {
    if (byte) bytes.push(parseInt(byte, 16));
    else if (point && parseInt(point, 16) <= 0x10ffff) bytes.push(...UTF8.encode(String.fromCodePoint(parseInt(point, 16))));
    else if (backslash) bytes.push(0x5c);
    else if (whole.startsWith("\\")) throw new Error("escapes are \\\\, \\x00 to \\xff and \\u{0} to \\u{10ffff}");
    else bytes.push(...UTF8.encode(whole));
  }
  return Uint8Array.from(bytes);
}
