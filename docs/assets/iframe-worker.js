// Browsers start no worker for a page that was opened from a file, and the search is one. There it runs in a frame.
if (location.protocol === "file:") {
  window.Worker = class {
    constructor(url) {
      this.onmessage = null
      this.frame = document.createElement("iframe")
      this.frame.hidden = true
      document.body.append(this.frame)

      const inside = this.frame.contentWindow
      inside.document.open()
      inside.postMessage = (data) => this.deliver(data, (copy) => this.onmessage?.({ data: copy }))
      const started = new Promise((resolve) => { inside.started = resolve })
      inside.document.write(`<script src="${new URL(url, location.href)}" onload="started()"></script>`)
      inside.document.close()
      this.started = started
    }

    postMessage(data) {
      const inside = this.frame.contentWindow
      this.deliver(data, (copy) => inside.dispatchEvent(new MessageEvent("message", { data: copy })))
    }

    // As between a page and its worker: a copy, made at once, that arrives later and in order.
    deliver(data, take) {
      const copy = structuredClone(data)
      this.started.then(() => take(copy))
    }

    terminate() {
      this.frame.remove()
    }
  }
}
