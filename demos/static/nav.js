// A narrow screen shows one line of menus: bring this page's own group into it.
const bring = () => {
  const line = element.querySelector('.kd-groups'), here = line && line.querySelector('.here');
  if (here && line.scrollWidth > line.clientWidth) line.scrollLeft = here.offsetLeft - line.offsetLeft - 24;
};
bring();
watch('value', bring);
