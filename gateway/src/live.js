// Loads a live page again every two seconds and replaces its <main>. Without JavaScript, the
// browser reloads the page.
"use strict";
(() => {
  const EVERY_MS = 2000;
  let loading = false;

  const busy = () => {
    const chosen = window.getSelection();
    return chosen && !chosen.isCollapsed;
  };

  // Replaces <main>. Keeps open boxes, the focus and the scroll positions.
  const swap = (old, fresh) => {
    for (const box of old.querySelectorAll("details[id]")) {
      const same = fresh.querySelector(`details[id="${box.id}"]`);
      if (same) same.open = box.open;
    }
    const at = document.activeElement;
    const focus = at && old.contains(at) ? at.getAttribute("href") : null;
    const scrolled = [...old.querySelectorAll(".scroll[id]")].map((box) => [box.id, box.scrollLeft, box.scrollTop]);
    old.replaceWith(fresh);
    for (const [id, left, top] of scrolled) {
      const box = document.getElementById(id);
      if (box) box.scrollTo(left, top);
    }
    if (focus) {
      const same = [...fresh.querySelectorAll("a")].find((link) => link.getAttribute("href") === focus);
      if (same) same.focus({ preventScroll: true });
    }
  };

  const again = async () => {
    const old = document.querySelector("main");
    if (loading || document.hidden || busy() || old.dataset.live !== "yes") return;
    loading = true;
    const lost = document.getElementById("lost");
    try {
      const reply = await fetch(location.href, { cache: "no-store" });
      const page = new DOMParser().parseFromString(await reply.text(), "text/html");
      const fresh = page.querySelector("main");
      if (fresh && !busy()) {
        const [left, top] = [window.scrollX, window.scrollY];
        swap(old, document.adoptNode(fresh));
        window.scrollTo(left, top);
        document.title = page.title;
      }
      lost.hidden = true;
    } catch {
      lost.hidden = false;
    } finally {
      loading = false;
    }
  };

  setInterval(again, EVERY_MS);
  document.addEventListener("visibilitychange", again);
})();
