// Confirmations as dialogs over the page. Without scripts each is a page of its own (jobs/confirm.html), or there is none.
"use strict";
(() => {
  const dialog = document.getElementById("ask");

  function show(nodes) {
    dialog.replaceChildren(...nodes);
    dialog.showModal();
  }

  // Attributes are read by name: fields named "id" and "action" hide the properties of the form.
  // The form of a selection: what it answers is shown over the list, so that the list and its ticks stay.
  document.addEventListener("submit", async (event) => {
    const form = event.target;
    if (event.defaultPrevented || form.getAttribute("id") !== "many") return;
    event.preventDefault();
    const body = new URLSearchParams(new FormData(form, event.submitter));
    body.set("csrf", document.querySelector("meta[name=csrf]").content);
    let answer;
    try {
      answer = await fetch(form.getAttribute("action"), { method: "POST", body, headers: { Accept: "text/html" } });
    } catch {
      return;  // the banner of live updates says that the dashboard does not answer
    }
    const page = new DOMParser().parseFromString(await answer.text(), "text/html");
    const main = page.querySelector("main");
    if (answer.redirected || !answer.ok || !main) { location.assign(answer.url); return; }
    const title = Object.assign(document.createElement("h2"), { textContent: main.querySelector("h1").textContent, id: "ask-title" });
    main.querySelector("h1").replaceWith(title);
    show(main.childNodes);
    document.dispatchEvent(new Event("jobherd:localise"));
  });
  dialog.addEventListener("click", (event) => {
    if (event.target.closest("a.button") && !event.target.closest("a[rel]")) { event.preventDefault(); dialog.close(); }
  });

  // A button that asks first.
  document.addEventListener("submit", (event) => {
    const form = event.target;
    if (!form.dataset.confirm || form.dataset.sure) return;
    event.preventDefault();
    event.stopImmediatePropagation();
    const word = event.submitter?.textContent || "Continue";
    const text = Object.assign(document.createElement("p"), { textContent: form.dataset.confirm, id: "ask-title" });
    const row = Object.assign(document.createElement("div"), { className: "row" });
    const yes = Object.assign(document.createElement("button"), { type: "button", className: event.submitter?.classList.contains("danger") ? "danger" : "main", textContent: word });
    const no = Object.assign(document.createElement("button"), { type: "button", textContent: "Back" });
    yes.addEventListener("click", () => {
      dialog.close();
      if (!form.isConnected) { form.hidden = true; document.body.append(form); }  // a live update took it away: submitting would do nothing
      form.dataset.sure = "yes";
      form.requestSubmit(event.submitter);
      delete form.dataset.sure;
    });
    no.addEventListener("click", () => dialog.close());
    row.append(yes, no);
    show([text, row]);
  }, true);
})();
