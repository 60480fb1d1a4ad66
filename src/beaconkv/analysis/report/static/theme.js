// Before the first paint: the reader's theme. The button (controls.js) changes it for as long as the page is open.
(() => {
  const dark = matchMedia("(prefers-color-scheme: dark)");
  const apply = () => document.documentElement.setAttribute("data-theme", dark.matches ? "dark" : "light");
  dark.addEventListener("change", apply);
  apply();
})();
