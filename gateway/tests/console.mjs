// Runs the console's script over a document that keeps texts alone: `node console.mjs URL TOKEN`. Prints the
// texts that it has shown once it follows the object `purse`, or after 30 s.
import vm from "node:vm";

const [base, token] = process.argv.slice(2);
const shown = [];
const forms = [];
const node = tag => ({
  tag, kids: [],
  append(...kids) { this.kids.push(...kids); },
  replaceChildren(...kids) { this.kids = kids; },
  // The form for the token: its reader fills it in.
  prepend(form) {
    forms.push(form);
    form.kids.find(kid => kid.tag === "input").value = forms.length === 1 ? "wrong" : token;
    setTimeout(() => form.onsubmit({ preventDefault() {} }));
  },
  remove() {}, focus() {}, addEventListener() {},
  set textContent(text) { shown.push(text); },
});
const named = {};
const kept = {};
const browser = {
  document: { getElementById: id => named[id] ??= node(id), createElement: node, body: node("body") },
  sessionStorage: { getItem: key => kept[key] ?? null, setItem: (key, value) => (kept[key] = value) },
  location: { hash: "#object/purse" },
  fetch: (path, options) => fetch(base + path, options),
  EventSource: class { constructor() { throw new Error("it cannot bear a token"); } },
  addEventListener() {}, performance, AbortController, TextDecoderStream, setTimeout, console,
};
vm.createContext(browser);
const page = await (await fetch(base + "/")).text();
const script = page.slice(page.indexOf("<script>") + "<script>".length, page.indexOf("</script>"));
vm.runInContext(script, browser);
const end = Date.now() + 30_000;
// The object once as it was fetched, and once as the stream tells it.
while (shown.filter(text => String(text).startsWith("Purse ")).length < 2 && Date.now() < end) {
  await new Promise(go => setTimeout(go, 20));
}
console.log(JSON.stringify({ shown, forms: forms.length, kept: Object.keys(kept) }));
process.exit();
