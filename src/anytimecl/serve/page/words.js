// What goes wrong, as one would say it to a person: what it was, and what to do.

const BY_STATUS = {
  0: "The service does not answer. Is it still running? Nothing that it confirmed is lost.",
  401: "The service asks for an access token.",
  413: "That is more than the service takes at once. Use a smaller picture.",
  415: "The service cannot read that.",
  429: "The service is busy. Nothing was changed; try again in a moment.",
  500: "The service made a mistake of its own; its log says more. Nothing that it confirmed is lost.",
};

const BY_DETAIL = [
  [/its size is \d+x\d+/i, "This picture is too large to be looked at here. Make it smaller."],
  [/cannot read image|not base64|no image|cannot identify/i,
    "This cannot be read as a picture: it is damaged, or of a kind that is not known here. Try a JPEG or a PNG."],
  [/may only read/i, "Your token lets you look, not teach. Ask for one that may write."],
  [/only reads/i, "This memory is served for reading only: nothing can be taught here."],
  [/no example/i, "That example is not in the memory any more."],
  [/cannot be used at the moment/i,
    "The memory cannot be written at the moment; its disk may be full. Nothing stored is lost."],
];

export function inWords(status, detail) {
  const found = BY_DETAIL.find(([sign]) => sign.test(detail));
  return found ? found[1] : BY_STATUS[status] || detail || `The service answered ${status}, and did not say why.`;
}

const EXPERTS = {
  original: "the model as it came",
  tuned: "the model that practised your examples",
  gaussian: "what your examples look like",
  instance: "single examples that look like it",
};

export const whoSpoke = (name) => EXPERTS[name] || `the expert “${name}”`;

export const when = (time) => (time ? new Date(time).toLocaleString([], { dateStyle: "medium", timeStyle: "short" }) : "");
