// Colours on canvases: those of the style sheet, and policies' own made legible on this background.

let colours = {};

/** Read the style sheet's colours again, after a change of theme. */
function readColours() {
  const style = getComputedStyle(document.documentElement);
  const names = ["paper", "ink", "soft", "rule", "global", "target", "gone", "held", "cold", "hot", "prompt", "wash"];
  colours = Object.fromEntries(names.map((name) => [name, style.getPropertyValue(`--${name}`).trim()]));
}

const channels = (hex) => [1, 3, 5].map((i) => parseInt(hex.slice(i, i + 2), 16));

const toHex = (rgb) => `#${rgb.map((v) => Math.round(v).toString(16).padStart(2, "0")).join("")}`;

/** `share` of the way from one #rrggbb to another. */
function mix(from, to, share) {
  const end = channels(to);
  return toHex(channels(from).map((v, i) => v + (end[i] - v) * share));
}

function luminance(hex) {
  const linear = channels(hex).map((v) => (v / 255 <= 0.04045 ? v / 255 / 12.92 : ((v / 255 + 0.055) / 1.055) ** 2.4));
  return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2];
}

function contrast(one, two) {
  const [low, high] = [luminance(one), luminance(two)].sort((a, b) => a - b);
  return (high + 0.05) / (low + 0.05);
}

/** The colour, moved towards the ink until it stands out 3:1 from the paper (WCAG's bound for graphics). */
function legible(hex) {
  let share = 0;
  while (share < 1 && contrast(mix(hex, colours.ink, share), colours.paper) < 3) share += 0.05;
  return mix(hex, colours.ink, Math.min(share, 1));
}

const DASHES = [[], [6, 3], [2, 2], [8, 3, 2, 3]];

/** Dashes of policy i: solid, unless an earlier one has the same colour. */
function dashesOf(i) {
  const earlier = run.policies.slice(0, i).filter((policy) => policy.colour === run.policies[i].colour);
  return DASHES[earlier.length % DASHES.length];
}
