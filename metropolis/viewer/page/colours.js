// Palettes that people with colour vision deficiencies can tell apart, for light and dark pages.

// Lead, from the floor to the front: cividis (Nuñez, Anderton and Renslow 2018), by anchors. Its dark
// end does not show on dark pages: there a lighter blue goes to the same yellow, also ever lighter.
const CIVIDIS = ["#00224e", "#123570", "#3b496c", "#575d6d", "#707173", "#8a8678", "#a59c74", "#c3b369", "#e1cc55", "#fee838"];
const ON_DARK = ["#3f74c4", "#5f86b8", "#7e97a9", "#9ba798", "#b7b785", "#d3c86d", "#fee838"];

const parsed = (hex) => [1, 3, 5].map((at) => parseInt(hex.slice(at, at + 2), 16));

// 256 colours through the anchors.
function scaleOf(colours) {
  const anchors = colours.map(parsed);
  return Array.from({ length: 256 }, (_, at) => {
    const place = (at / 255) * (anchors.length - 1);
    const low = Math.min(Math.floor(place), anchors.length - 2);
    const mixed = anchors[low].map((value, k) => value + (place - low) * (anchors[low + 1][k] - value));
    return `rgb(${mixed.map(Math.round).join(" ")})`;
  });
}

const SCALES = { light: scaleOf(CIVIDIS), dark: scaleOf(ON_DARK) };
const WHITE_UNTIL = { light: 0.47, dark: 0.02 }; // the share up to which white contrasts more than black
let scheme = "light";

// The colour of a share from 0 (at the floor) to 1.
export const leadColour = (share) => SCALES[scheme][Math.round(255 * Math.min(1, Math.max(0, share)))];
// The colour of text on it.
export const leadTextColour = (share) => (share < WHITE_UNTIL[scheme] ? "#fff" : "#000");
export const CATEGORIES_TOLD_APART = 7;
// The name in the style sheet of a category's colour; all after the first seven share the last one.
export const category = (index) => `category-${Math.min(index, CATEGORIES_TOLD_APART)}`;

// The page's colours, which canvases share with the style sheet.
export function theme() {
  const style = getComputedStyle(document.documentElement);
  scheme = style.colorScheme === "dark" ? "dark" : "light";
  const value = (name) => style.getPropertyValue(`--${name}`).trim();
  const names = ["paper", "panel", "ink", "quiet", "line", "wall", "floor", "accent", "alarm", "area", "bubble"];
  for (let index = 0; index <= CATEGORIES_TOLD_APART; index += 1) names.push(category(index));
  return Object.fromEntries(names.map((name) => [name, value(name)]));
}
