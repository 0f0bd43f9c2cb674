# cmake --install: the program with the RPATH of the libraries it was linked with, and what goes with it.
if(TARGET holdfast)
  set_target_properties(holdfast PROPERTIES INSTALL_RPATH_USE_LINK_PATH ON)
  install(TARGETS holdfast RUNTIME DESTINATION bin)
endif()
install(FILES data/cifar10-sample.h5 LICENSE DESTINATION share/holdfast)
install(FILES python/holdfast_io.py DESTINATION share/holdfast/python)
install(PROGRAMS jobs/train.sbatch jobs/array.sbatch jobs/eval.sbatch DESTINATION share/holdfast/jobs)
install(FILES jobs/job.bash DESTINATION share/holdfast/jobs)
# Job scripts look for what they share at the same place beside the program, installed or not.
file(MAKE_DIRECTORY ${PROJECT_BINARY_DIR}/share/holdfast)
file(CREATE_LINK ${PROJECT_SOURCE_DIR}/jobs ${PROJECT_BINARY_DIR}/share/holdfast/jobs SYMBOLIC)
# The prefix is known only now: cmake --install --prefix may change it.
install(CODE "
  set(PROJECT_VERSION ${PROJECT_VERSION})
  configure_file(\"${PROJECT_SOURCE_DIR}/modulefiles/holdfast.in\"
    \"\$ENV{DESTDIR}\${CMAKE_INSTALL_PREFIX}/share/modulefiles/holdfast/${PROJECT_VERSION}\" @ONLY)
  message(STATUS \"Installing: \$ENV{DESTDIR}\${CMAKE_INSTALL_PREFIX}/share/modulefiles/holdfast/${PROJECT_VERSION}\")
")
