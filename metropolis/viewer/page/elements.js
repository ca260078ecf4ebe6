// Elements of the page. Text is set as text, never as HTML: much of it comes from models.

export function element(tag, options = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(options)) {
    if (name === "class") made.className = value;
    else if (name.startsWith("on")) made.addEventListener(name.slice(2), value);
    else if (value === true) made.setAttribute(name, "");
    else if (value !== false && value !== null && value !== undefined) made.setAttribute(name, value);
  }
  made.append(...children.filter((child) => child !== null && child !== undefined));
  return made;
}

// Replaces what is in an element; focus and typed text stay where they were.
export function keepFocus(root, replace) {
  const focusable = () => [...root.querySelectorAll("a, button, input, summary")];
  const { activeElement } = document;
  const typed = root.querySelector("input")?.value;
  const at = focusable().indexOf(activeElement);
  replace();
  const input = root.querySelector("input");
  if (input !== null && typed) input.value = typed;
  const same = at < 0 ? undefined : focusable()[at];
  if (same?.tagName === activeElement.tagName) same.focus({ preventScroll: true });
}

// A sentence if not all of a list are shown.
export const onlyFirst = (list, most) => (list.length > most ? element("p", { class: "quiet" }, `The first ${most} are shown.`) : null);

export const byId = (id) => document.getElementById(id);
