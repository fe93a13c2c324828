// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// Search of a site that is read from a folder: browsers start no Worker there. This one runs the worker's script in a hidden frame,
// on the page's thread, with the same messages.
if (location.protocol === "file:") {
  window.Worker = class extends EventTarget {
    constructor(url) {
      super();
      const frame = document.createElement("iframe");
      frame.hidden = true;
      document.body.append(frame);
      const inside = frame.contentWindow;
      inside.postMessage = (data) => setTimeout(() => this.dispatchEvent(new MessageEvent("message", { data })));
      this.inside = new Promise((loaded) => {
        const script = frame.contentDocument.createElement("script");
        script.src = new URL(url, location.href);
        script.onload = () => loaded(inside);
        frame.contentDocument.body.append(script);
      });
      this.frame = frame;
    }
    postMessage(data) {
      this.inside.then((inside) => inside.dispatchEvent(new inside.MessageEvent("message", { data })));
    }
    terminate() {
      this.frame.remove();
    }
  };
}
