# cmake --install: the program with the RPATH of the libraries it was linked with, and what goes with it. Everything is found
# relative to the program (share/ beside bin/) or by the prefix that --install was given, so --prefix may name any folder.
set(HOLDFAST_MODULE_DEPENDENCIES "" CACHE STRING "Modules that the modulefile loads first: \"openmpi/4.1.6;hdf5/1.14\"")

if(TARGET holdfast)
  set_target_properties(holdfast PROPERTIES INSTALL_RPATH_USE_LINK_PATH ON)
  install(TARGETS holdfast RUNTIME DESTINATION bin)
endif()
install(FILES data/cifar10-sample.h5 LICENSE DESTINATION share/holdfast)
install(FILES data/README.md DESTINATION share/holdfast RENAME cifar10-sample.md)
install(DIRECTORY jobs python DESTINATION share/holdfast USE_SOURCE_PERMISSIONS PATTERN __pycache__ EXCLUDE)
install(PROGRAMS scripts/fetch-cifar10 DESTINATION share/holdfast/scripts)
install(DIRECTORY docs DESTINATION share/doc/holdfast)  # with all that the guides refer to
install(FILES README.md CHANGELOG.md DESTINATION share/doc/holdfast)
install(DIRECTORY man/ DESTINATION share/man/man1 FILES_MATCHING PATTERN *.1)
install(FILES completions/holdfast.bash DESTINATION share/bash-completion/completions RENAME holdfast)
install(FILES completions/_holdfast DESTINATION share/zsh/site-functions)

# Job scripts look for what they share at the same place beside the program, installed or not.
file(MAKE_DIRECTORY ${PROJECT_BINARY_DIR}/share/holdfast)
file(CREATE_LINK ${PROJECT_SOURCE_DIR}/jobs ${PROJECT_BINARY_DIR}/share/holdfast/jobs SYMBOLIC)

# The modulefile holds the prefix, which is known only when it is installed.
list(TRANSFORM HOLDFAST_MODULE_DEPENDENCIES PREPEND "depends-on " OUTPUT_VARIABLE depends_on)
list(JOIN depends_on "\n" depends_on)
install(CODE "
  set(PROJECT_VERSION [==[${PROJECT_VERSION}]==])
  set(depends_on [==[${depends_on}]==])
  get_filename_component(root \"\${CMAKE_INSTALL_PREFIX}\" ABSOLUTE)
  configure_file([==[${PROJECT_SOURCE_DIR}/modulefiles/holdfast.in]==] [==[${PROJECT_BINARY_DIR}/modulefile]==] @ONLY)
  file(INSTALL DESTINATION \"\${root}/share/modulefiles/holdfast\" TYPE FILE RENAME [==[${PROJECT_VERSION}]==]
    FILES [==[${PROJECT_BINARY_DIR}/modulefile]==])
" COMPONENT modulefile)
