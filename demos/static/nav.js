// A narrow screen shows one line of menus: bring this page's own group into it.
const bring = () => {
  const line = element.querySelector('.kd-groups'), here = line && line.querySelector('.here');
  if (here && line.scrollWidth > line.clientWidth) line.scrollLeft = here.offsetLeft - line.offsetLeft - 24;
};
// The navigation speaks the page's language: the document says so, for hyphens, fonts and readers.
const shown = () => {
  const nav = element.querySelector('nav[lang]');
  if (nav) document.documentElement.lang = nav.lang;
  bring();
};
shown();
watch('value', shown);
